"""Direct preference optimisation (DPO) of a Transformers model, whose logits are never in memory.

python python/examples/transformers_preference_loss.py
"""

import copy

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, LlamaConfig
from xeflash import linear_log_prob

device = "xpu" if torch.xpu.is_available() else "cpu"
torch.manual_seed(0)
vocabulary, pairs, prompt, answer, beta = 8000, 4, 24, 40, 0.1
sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
config = LlamaConfig(vocab_size=vocabulary, num_hidden_layers=2, **sizes)
policy = AutoModelForCausalLM.from_config(config).to(device)
reference = copy.deepcopy(policy).requires_grad_(False)
with torch.no_grad():  # as if it had been trained for a while
    for weight in policy.parameters():
        weight += 0.1 * weight.std() * torch.randn_like(weight)

# Row i of the first half is the chosen answer to a prompt, row i of the second half the rejected one.
asked = torch.randint(vocabulary, (pairs, prompt), device=device).repeat(2, 1)
tokens = torch.cat([asked, torch.randint(vocabulary, (2 * pairs, answer), device=device)], 1)
lengths = torch.randint(10, answer + 1, (2 * pairs, 1), device=device)  # what follows an answer is padding
place = torch.arange(1, prompt + answer, device=device)
in_answer = (place >= prompt) & (place < prompt + lengths)


def by_xeflash(model):
    """Returns log-probabilities of each next token, from hidden states and the weight of the head."""
    return linear_log_prob(model.model(tokens[:, :-1]).last_hidden_state, model.lm_head.weight, tokens[:, 1:])


def by_logits(model):
    """Returns the same from logits, as it is usually done."""
    return model(tokens[:, :-1]).logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def train(log_probs):
    """Returns the loss of a step, its gradients, and the bytes that autograd kept for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.no_grad():
        reference_sums = (log_probs(reference) * in_answer).sum(-1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        chosen, rejected = ((log_probs(policy) * in_answer).sum(-1) - reference_sums).split(pairs)
        loss = -logsigmoid(beta * (chosen - rejected)).mean()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return loss, gradients, sum(kept.values())


loss, gradients, kept = train(by_xeflash)
expected, expected_gradients, kept_with_logits = train(by_logits)
error = abs(loss - expected).item()
errors = [((a - b).norm() / b.norm()).item() for a, b in zip(gradients, expected_gradients, strict=True)]
print(f"loss {loss:.6f}, {error:.1e} from that of logits; gradients differ by {max(errors):.1e} of their norm at most")
print(f"for the backward pass {kept / 1e6:.1f} MB were kept, with logits {kept_with_logits / 1e6:.1f} MB")
assert error < 1e-5
assert max(errors) < 1e-4
assert kept_with_logits - kept > 0.9 * 4 * vocabulary * tokens[:, 1:].numel()  # the logits in fp32

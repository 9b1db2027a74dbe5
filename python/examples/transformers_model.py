"""Text generation with a model of Hugging Face Transformers: two lines change.

python python/examples/transformers_model.py [MODEL]     e.g. Qwen/Qwen3-0.6B; default a tiny model with random weights
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from xeflash.integrations.transformers import XeCache, register

device = "xpu" if torch.xpu.is_available() else "cpu"
xe_attention = register()

if len(sys.argv) > 1:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to(device)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    prompt = tokenizer("The meaning of life is", return_tensors="pt").input_ids.to(device)
else:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=1000, num_hidden_layers=2, **sizes)).to(device)
    tokenizer = None
    prompt = torch.randint(3, 1000, (1, 20), device=device)

settings = {"max_new_tokens": 30, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
model.set_attn_implementation("sdpa")  # PyTorch's, for comparison
expected = model.generate(prompt, **settings)

model.set_attn_implementation(xe_attention)  # the first line; from_pretrained has the argument attn_implementation
tokens = model.generate(prompt, cache=XeCache(model.config), **settings)  # the second: its cache

print(tokenizer.decode(tokens[0]) if tokenizer else tokens[0].tolist())
same = int((tokens == expected).long().cumprod(-1).sum()) - prompt.shape[1]
print(f"{same} of {tokens.shape[1] - prompt.shape[1]} new tokens are those of PyTorch's attention")
if tokenizer is None:  # in bfloat16, rounding may choose another token of two that are as likely
    assert torch.equal(tokens, expected)

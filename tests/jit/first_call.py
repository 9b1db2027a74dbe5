"""Calls that compile, each against torch; prints what was right. With an argument: prints their errors instead."""

import sys

import torch
import torch.nn.functional as F
import xeflash
from xeflash.jit.headers import NoCompiler


def main(expects_errors):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 23, 24) for _ in range(3))
    x, w = torch.randn(3, 64), torch.randn(48, 64)
    learned = q.clone().requires_grad_()

    def gradients():
        out = xeflash.attention(learned, k, v)
        return torch.autograd.grad(out.sum(), learned)[0]

    def gradients_of_torch():
        return torch.autograd.grad(F.scaled_dot_product_attention(learned, k, v).sum(), learned)[0]

    calls = {
        "attention": (lambda: xeflash.attention(q, k, v), lambda: F.scaled_dot_product_attention(q, k, v)),
        "gradients": (gradients, gradients_of_torch),
        "linear": (lambda: xeflash.linear(x, w), lambda: F.linear(x, w)),
        "score_mod": (
            lambda: xeflash.attention(q, k, v, score_mod="s + 0.125f * (k_idx - q_idx)"),
            lambda: F.scaled_dot_product_attention(
                q, k, v, attn_mask=0.125 * (torch.arange(23.0) - torch.arange(23.0)[:, None])
            ),
        ),
    }
    for name, (ours, theirs) in calls.items():
        try:
            torch.testing.assert_close(ours(), theirs(), atol=1e-5, rtol=1e-5)
        except NoCompiler as error:
            if not expects_errors:
                raise
            print(error)
        else:
            assert not expects_errors, name
            print(name)


if __name__ == "__main__":
    main(len(sys.argv) > 1)

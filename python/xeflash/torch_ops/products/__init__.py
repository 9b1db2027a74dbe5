"""The operators of products of matrices, and their gradients."""

from xeflash.torch_ops.products import heads, linear, matmul_softmax, sample

__all__ = ["heads", "linear", "matmul_softmax", "sample"]

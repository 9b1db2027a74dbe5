"""``torch.ops.xeflash.*``: the functions as operators of torch's dispatcher, for CPU and XPU tensors.

They can be traced (torch.compile, torch.export), see autocast and dispatch modes, and give results in memory of torch's
allocators without waiting for a device. The public functions go through them by themselves where that matters, see
``needed``; elsewhere they call the extension directly, which costs less. A result that was not asked for has no
elements; ``function`` is who calls, for messages.

The package stands in for the extension there (``stand_in``).
"""

from xeflash.torch_ops import products as _products  # noqa: F401  registers its operators
from xeflash.torch_ops.attention import write as _write  # noqa: F401
from xeflash.torch_ops.library import check_gradients, needed
from xeflash.torch_ops.stand_in import attend, compute, merge_states, refuse_shared

__all__ = ["attend", "check_gradients", "compute", "merge_states", "needed", "refuse_shared"]

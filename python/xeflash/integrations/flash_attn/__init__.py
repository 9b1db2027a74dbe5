"""The module ``flash_attn`` of flash-attn 2, by xeflash, for programs that import it.

``xeflash flash-attn install`` puts a ``flash_attn`` that imports this one into site-packages, see
_flash_attn_package.py. ``flash_attn_2_cuda``, whose functions are not for programs, is not there: who looks for it is
to find that there is none. Who imports another module that is not there reads what to use in its place.
"""

import sys

from xeflash import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from xeflash.integrations._flash_attn_package import VERSION
from xeflash.integrations.flash_attn.absent import Finder

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

__version__ = VERSION
sys.meta_path.append(Finder)

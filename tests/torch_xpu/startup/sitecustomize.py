"""For programs that tests start: with this folder in PYTHONPATH, torch has its XPU backend there, too.

XEFLASH_TEST_TORCH_XPU: the backend, where it was built before.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch_xpu

built = os.environ.get("XEFLASH_TEST_TORCH_XPU")
torch_xpu.install(Path(built) if built else None)

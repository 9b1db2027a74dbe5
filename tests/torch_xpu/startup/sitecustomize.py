"""For programs that tests start: with this folder in PYTHONPATH, torch has its XPU backend there, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import torch_xpu

torch_xpu.install()

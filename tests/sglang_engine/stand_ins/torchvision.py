"""Stands for torchvision."""

from missing_package import Finder
from missing_package import missing_name as __getattr__  # noqa: F401

__path__: list[str] = []
__version__ = "0"
Finder(__name__)

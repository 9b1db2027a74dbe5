"""What the extension and Python tell each other of kernels: both list the same fields."""

from dataclasses import fields

import pytest
from xeflash import _core
from xeflash.tune.desc import Desc, ProductDesc, SoftmaxDesc

DEVICE = {"arch", "device", "driver"}  # of the device that a kernel is for


@pytest.mark.parametrize(
    ("kind", "names_of"),
    [(Desc, _core.desc_names), (ProductDesc, _core.product_names), (SoftmaxDesc, _core.softmax_names)],
)
def test_the_extension_describes_kernels_by_the_fields_of_python(kind, names_of):
    names = [field.name for field in fields(kind)]
    assert [name for name in names if name not in DEVICE] == list(names_of())
    assert set(names) >= DEVICE

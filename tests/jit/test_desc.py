"""What the extension and Python tell each other of kernels: both list the same fields."""

from dataclasses import fields

from xeflash import _core
from xeflash.tune import Schedule
from xeflash.tune.desc import Desc, SoftmaxDesc

DEVICE = {"arch", "device", "driver"}  # of the device that a kernel is for


def test_the_extension_describes_kernels_by_the_fields_of_python():
    names = [field.name for field in fields(Desc)]
    assert [name for name in names if name not in DEVICE] == list(_core.desc_names())
    assert set(names) >= DEVICE


def test_the_extension_describes_softmax_kernels_by_the_fields_of_python():
    names = [field.name for field in fields(SoftmaxDesc)]
    assert [name for name in names if name not in DEVICE] == list(_core.softmax_names())
    assert set(names) >= DEVICE


def test_the_extension_reads_all_numbers_of_a_schedule():
    assert {field.name for field in fields(Schedule)} == set(_core.schedule_names())

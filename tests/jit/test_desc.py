"""What the extension and Python tell each other of kernels: both list the same fields."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from xeflash import _core
from xeflash.tune import ProductSchedule, Schedule
from xeflash.tune.desc import ALGORITHMS, Desc, ProductDesc, SoftmaxDesc

DEVICE = {"arch", "device", "driver"}  # of the device that a kernel is for


@pytest.mark.parametrize(
    ("kind", "names_of"),
    [(Desc, _core.desc_names), (ProductDesc, _core.product_names), (SoftmaxDesc, _core.softmax_names)],
)
def test_the_extension_describes_kernels_by_the_fields_of_python(kind, names_of):
    names = [field.name for field in fields(kind)]
    assert [name for name in names if name not in DEVICE] == list(names_of())
    assert set(names) >= DEVICE


def test_the_build_tells_the_extension_all_names_of_tune(tmp_path):
    script, header = Path(__file__).parents[2] / "python" / "build" / "tune_header.py", tmp_path / "new" / "tune.hpp"
    simulated = os.environ | {"XEFLASH_SIM": "bmg"}  # which the package would look for its extension for
    subprocess.run([sys.executable, "-S", script, header], check=True, env=simulated)
    text = header.read_text()
    assert f"enum class Algorithm : uint8_t {{ {', '.join(ALGORITHMS)} }};" in text
    for kind in (Schedule, ProductSchedule):
        members = text.split(f"struct {kind.__name__} {{\n")[1].split("};")[0]
        assert members == "".join(f"  {field.type} {field.name};\n" for field in fields(kind))

"""perf/counts.py: its tables in each format, and a family that runs on a simulated GPU."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).parents[2] / "perf"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(PERF))
    from counting import tables

    return tables


def reported(tables, name, capsys, **more):
    rows = [{"D": 64, "share": 0.125, "form": "flash"}, {"D": 128, "share": None, "form": "standard"}]
    table = tables.Table("counts", {"D": "", "share": ".1%", "form": ""}, iter(rows), **more)
    tables.PRINTERS[name](iter([table, "  a note"]))
    return capsys.readouterr().out


def test_markdown_has_formatted_numbers(tables, capsys):
    lines = reported(tables, "md", capsys).split("\n")
    assert lines[:6] == [
        "", "### counts", "", "| D | share | form |", "|---|---|---|", "| 64 | 12.5% | flash |",
    ]  # fmt: skip
    assert lines[6:9] == ["| 128 | - | standard |", "", "- a note"]


def test_tables_that_are_turned_have_a_column_for_each_row(tables, capsys):
    lines = reported(tables, "md", capsys, above=("D", "form")).split("\n")
    assert lines[3:6] == ["|  | 64 flash | 128 standard |", "|---|---|---|", "| share | 12.5% | - |"]


def test_csv_and_json_have_the_numbers_themselves(tables, capsys):
    assert reported(tables, "csv", capsys).split("\n") == [
        "# counts", "D,share,form", "64,0.125,flash", "128,,standard", "# a note", "",
    ]  # fmt: skip
    found = json.loads(reported(tables, "json", capsys))
    assert found["tables"][0]["rows"][1] == {"D": 128, "share": None, "form": "standard"}
    assert found["notes"] == ["  a note"]


def test_text_is_a_table_with_its_title(tables, capsys):
    text = reported(tables, "text", capsys)
    assert "counts" in text and "12.5%" in text and "a note" in text


def counts(*words, status=0):
    done = subprocess.run([sys.executable, str(PERF / "counts.py"), *words], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_unknown_choices_are_refused():
    assert "choose from pvc" in counts("backward", "--device", "pvc,gpu", status=2)
    assert "descriptions have no headdim" in counts("spills", "--only", "headdim=3", status=2)
    assert "'3/2' is no list of query heads / KV heads" in counts(
        "decode", "--device", "pvc", "--heads", "3/2", status=2
    )
    assert "'l3' is none of l2, l1+l2" in counts("forward", "--device", "pvc", "--caches", "l3", status=2)


@pytest.mark.wide
def test_a_family_counts_on_several_devices(ocloc):
    words = ("--device", "pvc,dg2", "--head-dim", "64", "--loop-only", "--format", "csv")
    rows = list(csv.DictReader(counts("backward", *words).splitlines()[1:]))
    assert [(row["device"], row["kernel"]) for row in rows] == [
        (device, kernel) for device in ("pvc", "dg2") for kernel in ("dQ", "dK, dV")
    ]
    for row in rows:
        assert float(row["instr / block"]) > 100 and 0 < float(row["dpas"]) < 0.5
        assert row["spilled"] == "0" and int(row["code bytes"]) > 1000


@pytest.mark.wide
@pytest.mark.parametrize("caches", ["l2", "l2:1"])
def test_decode_says_what_memory_reads(ocloc, caches):
    """An L2 of 1 MiB is smaller than the blocks of all threads, but what came in ahead of time is used before it goes."""
    words = ("--device", "bmg", "--batch", "2", "--heads", "8/2", "--keys", "4k", "--head-dim", "128")
    lines = counts("decode", *words, "--caches", caches, "--format", "csv").splitlines()
    decode, forward = csv.DictReader(line for line in lines if not line.startswith("#"))
    assert (decode["kernel"], forward["kernel"]) == ("decode 8/2", "forward, 4 rows")
    assert float(decode["lines / KV"]) < 1.01
    memory = float(decode["memory / KV"])
    assert memory < 1.01 if caches == "l2" else 1.01 < memory < float(decode["L2 / KV"])
    assert float(decode["lost / KV"]) == 0


@pytest.mark.wide
def test_a_tree_costs_as_much_as_a_causal_call(ocloc):
    words = ("--device", "bmg,dg2", "--tree", "8,33", "--keys", "2k", "--format", "csv")
    rows = list(csv.DictReader(counts("verify", *words).splitlines()[1:]))
    assert [(row["device"], row["nodes"]) for row in rows] == [
        ("bmg", "8"), ("bmg", "33"), ("dg2", "8"), ("dg2", "33"),
    ]  # fmt: skip
    for row in rows:
        assert 0.9 < float(row["of causal"]) < 1.04 and 1 < float(row["bytes of causal"]) < 1.01, row
        assert row["spilled"] == "0", row


@pytest.mark.wide
@pytest.mark.parametrize("device", ("bmg", "pvc", "dg2"))
def test_no_head_dim_costs_much_more_than_a_wider_one(ocloc, device):
    words = ("--device", device, "--head-dim", "40,56,72,88,104", "--format", "csv")
    rows = list(csv.DictReader(counts("dims", *words).splitlines()[1:]))
    assert [(row["D"], row["beside"]) for row in rows] == [
        ("40", "64"), ("56", "64"), ("72", "96"), ("88", "96"), ("104", "128"),
    ]  # fmt: skip
    for row in rows:
        assert float(row["its instructions"]) < 1.2 and float(row["its bytes"]) < 1.2, row
        assert float(row["dpas"]) >= float(row["least"]) > 0 and row["spilled"] == "0", row

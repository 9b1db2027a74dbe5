"""Cards as Linux shows them, and the known faults of their software."""

import io
import json
import re

import pytest
from xeflash.cli import cards, checks, doctor, known_faults
from xeflash.cli.cards import Card
from xeflash.cli.facts import Facts
from xeflash.cli.verdict import verdict

XE_GUC_INFO = """\
GuC firmware: xe/bmg_guc_70.bin
\tstatus: RUNNING
\twanted release 70.29.2
\tfound release 70.44.1
\tfound compatibility 1.20.0
\tuCode: 444160 bytes

GuC status: 0x8002f034
"""
I915_GUC_INFO = "GuC firmware: i915/dg2_guc_70.bin\n\tstatus: RUNNING\n\tversion: wanted 70.12.1, found 70.11.0\n"
XE_LOG = """\
[    3.1] xe 0000:03:00.0: [drm] Tile0: GT0: Using GuC firmware from xe/bmg_guc_70.bin version 70.58.0
[    3.2] xe 0000:03:00.0: [drm] Using HuC firmware from xe/bmg_huc.bin version 8.2.10
"""
I915_LOG = """\
[0.8] i915 0000:0b:00.0: [drm] GT0: GuC firmware i915/dg2_guc_70.bin (70.12.1) is recommended, but only 70.11.0 was found
[0.9] i915 0000:0b:00.0: [drm] GT0: GuC firmware i915/dg2_guc_70.bin version 70.11.0
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (XE_GUC_INFO, {"bmg": "70.44.1"}),
        (I915_GUC_INFO, {"dg2": "70.11.0"}),
        (XE_LOG, {"bmg": "70.58.0"}),
        (I915_LOG, {"dg2": "70.11.0"}),
        (XE_GUC_INFO + I915_GUC_INFO, {"bmg": "70.44.1", "dg2": "70.11.0"}),
        ("GuC firmware: xe/bmg_guc_70.bin\n\tstatus: MISSING\nfound 3", {}),
        ("", {}),
    ],
)
def test_the_version_of_the_guc_is_read(text, found):
    assert cards.guc_versions(text) == found


def test_the_guc_is_read_from_debugfs_and_else_from_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "_LOGS", (["/no/such/program"], ["false"], ["echo", XE_LOG]))
    assert cards.read_guc(tmp_path) == {"bmg": "70.58.0"}
    file = tmp_path / "sys/kernel/debug/dri/0000:03:00.0/tile0/gt0/uc/guc_info"
    file.parent.mkdir(parents=True)
    file.write_text(XE_GUC_INFO)
    assert cards.read_guc(tmp_path) == {"bmg": "70.44.1"}
    monkeypatch.setattr(cards, "_LOGS", ())
    assert cards.read_guc(tmp_path / "elsewhere") == {}


LINE = "0x{:016x} 0x{:016x} 0x000000000014220c\n"
SMALL = LINE.format(0x84000000, 0x84FFFFFF) + LINE.format(0, 0) + LINE.format(0xE0000000, 0xEFFFFFFF)
LARGE = LINE.format(0x84000000, 0x84FFFFFF) + LINE.format(0, 0) + LINE.format(0x4000000000, 0x43FFFFFFFF)


@pytest.mark.parametrize(
    ("resource", "window"), [(SMALL, 256), (LARGE, 16384), ("", 0), ("what\nis\nthis\n", 0), (3 * LINE.format(0, 0), 0)]
)
def test_the_window_is_bar_2(resource, window):
    assert cards.window_of(resource) == window


def put_device(root, address, *, module="", **files):
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    if module:
        driver = root / "sys/bus/pci/drivers" / module
        driver.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(driver)


def test_cards_are_found_and_other_devices_are_not(tmp_path):
    gpu = {"vendor": "0x8086\n", "class": "0x030000\n", "resource": LARGE}
    put_device(tmp_path, "0000:03:00.0", module="xe", device="0xe20b\n", **gpu)
    put_device(tmp_path, "0000:04:00.0", device="0x56a0\n", **(gpu | {"class": "0x038000\n"}))
    put_device(tmp_path, "0000:00:02.0", module="i915", device="0x4680\n", **gpu)  # integrated
    put_device(tmp_path, "0000:05:00.0", device="0xe20b\n", **(gpu | {"vendor": "0x10de\n"}))
    put_device(tmp_path, "0000:03:00.1", device="0xe2f7\n", **(gpu | {"class": "0x040300\n"}))  # its sound
    assert cards.find_cards(tmp_path) == (
        Card("0000:03:00.0", "e20b", "xe", 16384),
        Card("0000:04:00.0", "56a0", "", 16384),
    )
    assert cards.find_cards(tmp_path / "none") == ()


B580, A770 = Card("0000:03:00.0", "e20b", "xe", 12288), Card("0000:04:00.0", "56a0", "i915", 16384)


def machine(*found, kernel="7.2.0-arch1", guc="70.72.1", driver="1.15.39122+14"):
    devices = [{"arch": card.platform, "driver": driver, "type": "gpu", "name": "a card"} for card in found]
    guc = {card.platform: guc for card in found} if guc else {}
    return Facts(kernel=kernel, cards=found, guc=guc, probe={"core": {"devices": devices}, "attention": {"gpu": "ok"}})


def faults(facts):
    return [(check.detail, check.fix) for check in checks.all_checks(facts) if check.name == "known fault"]


def test_good_versions_have_no_fault():
    assert faults(machine(B580)) == faults(machine(A770)) == faults(machine(B580, B580)) == faults(machine()) == []


WITHOUT_WINDOW = Card("0000:03:00.0", "e20b", "xe", 256)


@pytest.mark.parametrize(
    ("facts", "says", "fix"),
    [
        (machine(B580, guc="70.58.0"), "GuC firmware 70.58.0: compute can end in engine resets", "70.65 or newer"),
        (machine(B580, kernel="6.8.0-87-generic"), "Linux 6.8.0-87-generic: xe takes Battlemage only", "Linux 6.12"),
        (machine(A770, kernel="6.1.0-18-amd64"), "Linux 6.1.0-18-amd64: launches of kernels fail", "Linux 6.2"),
        (machine(B580, kernel="6.18.5", driver="1.13.36300+8"), "OUT_OF_DEVICE_MEMORY, or the driver aborts", "6.17"),
        (machine(B580, driver="1.15.39122+12"), "Level Zero driver 1.15.39122+12: SYCL programs end", "26.22.38646.7"),
        (machine(B580, B580, kernel="6.17"), "in a program that sees two cards", "export NEOReadDebugKeys=1"),
        (machine(WITHOUT_WINDOW), "BAR of 256 MiB: Resizable BAR is off", "enable Above 4G Decoding"),
    ],
)
def test_a_known_fault_is_a_warning_with_its_source_and_never_a_failure(facts, says, fix):
    found = faults(facts)
    assert all(says in text and fix in remedy for text, remedy in found) and len(found) == (2 if facts.cards[1:] else 1)
    assert re.search(r"https://\S+\)$", found[0][0])
    assert verdict(facts).ok


@pytest.mark.parametrize(
    "facts",
    [
        machine(B580, guc="70.65.0"),
        machine(B580, guc=""),
        machine(A770, guc="70.29.2", kernel="6.2.0"),
        machine(B580, kernel="6.12.0"),
        machine(B580, kernel="6.18.5", driver="1.14.37020+3"),
        machine(B580, kernel="6.17.13", driver="1.13.36300+8"),
        machine(B580, kernel="", driver="odd"),
        machine(B580, driver="1.15.39122"),
        machine(B580, A770, kernel="6.17"),
        machine(A770, A770, kernel="6.17"),
        machine(B580, B580, kernel="6.17", driver="1.13.35563+7"),
        machine(Card("0000:03:00.0", "e20b", "xe", 0)),
    ],
)
def test_versions_beside_the_known_ones_have_none(facts):
    assert faults(facts) == []


def lines_of(facts):
    out = io.StringIO()
    doctor.print_report(facts, checks.all_checks(facts), out)
    return [re.sub(" +", " ", line) for line in out.getvalue().splitlines()]


def test_the_report_names_the_card_and_its_firmware():
    lines = lines_of(machine(B580, guc="70.58.0"))
    card = "bmg e20b at 0000:03:00.0"
    assert (
        f"ok card {card}: kernel driver xe, Linux 7.2.0-arch1, 12288 MiB of its memory within the CPU's reach" in lines
    )
    assert "ok gpu firmware GuC of bmg: 70.58.0" in lines
    (at,) = (i for i, line in enumerate(lines) if line.startswith(f"warn known fault {card}: GuC firmware 70.58.0: "))
    assert lines[at].endswith("(https://github.com/intel/compute-runtime/issues/948)")
    assert lines[at + 1].startswith(" -> install a linux-firmware with xe/bmg_guc_70.bin")
    assert lines[-1] == "attention runs on a card"


def test_what_is_not_known_has_the_command_that_reads_it():
    lines = lines_of(machine(B580, guc=""))
    at = lines.index("info gpu firmware GuC of bmg: its version is for root to read")
    assert lines[at + 1] == ' -> sudo dmesg | grep "GuC firmware"'


def test_a_card_without_a_kernel_driver_is_told():
    lines = lines_of(machine(Card("0000:03:00.0", "e20b", "", 256), kernel="6.8.0"))
    assert "warn card bmg e20b at 0000:03:00.0: Linux 6.8.0 has no driver for it" in lines


def test_every_fault_can_be_shown_and_has_a_source():
    for fault in known_faults.FAULTS:
        assert fault.source.startswith("https://") and fault.effect and fault.remedy
        assert all(since < end for since, end in fault.versions.values())


def test_the_json_report_has_the_cards():
    facts = machine(B580, guc="70.58.0")
    data = json.loads(doctor.report_json(facts, checks.all_checks(facts)))
    assert data["facts"]["cards"] == [{"address": "0000:03:00.0", "device": "e20b", "module": "xe", "window": 12288}]
    assert data["facts"]["guc"] == {"bmg": "70.58.0"} and data["facts"]["kernel"] == "7.2.0-arch1"

"""The reader of native binaries: against PyYAML's reading of .ze_info, and on damaged files."""

import ctypes
import json
import random
import struct
from pathlib import Path

import pytest
from toolbox import compile_opencl, function

FAMILIES = ["pvc", "bmg", "dg2", "ptl"]
GFX_CORE = {"pvc": 0xC08, "bmg": 0xC09, "dg2": 0xC07, "ptl": 0x1E00}
KERNELS = Path(__file__).with_name("zebin_kernels.cl")


def describe(family: str, data: bytes) -> dict:
    text = function("xesim_describe", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64)(
        family.encode(), data, len(data)
    )
    return json.loads(text)


def refusal(family: str, data: bytes) -> str:
    described = describe(family, data)
    assert "error" in described, f"accepted: {described}"
    return described["error"]


# ---- a second reader, with struct and PyYAML ----------------------------------------------------


def sections_of(data: bytes) -> list[dict]:
    table, entry, count, names = (*struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HHH", data, 0x3A))
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    result = []
    for name, kind, _, _, offset, size, link, _, _, _ in heads:
        first = heads[names][4] + name
        body = b"" if kind == 8 else data[offset : offset + size]
        label = data[first : data.index(b"\0", first)].decode()
        result.append({"name": label, "type": kind, "size": size, "link": link, "data": body})
    return result


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


TYPE_NAMES = {
    "arg_bypointer": "pointer",
    "buffer_address": "pointer",
    "arg_byvalue": "value",
    "global_id_offset": "global_offset",
    "private_base_stateless": "private_base",
    "implicit_arg_buffer": "implicit_args",
}


def expected_payload(argument: dict) -> dict:
    return {
        "type": TYPE_NAMES.get(argument["arg_type"], argument["arg_type"]),
        "mode": argument.get("addrmode", "stateless"),
        "index": argument.get("arg_index", -1),
        "offset": argument["offset"],
        "size": argument["size"],
        "source_offset": argument.get("source_offset", 0),
        "slm_alignment": argument.get("slm_alignment", 16),
    }


def expected_kernel(info: dict, sections: list[dict]) -> dict:
    environment = info["execution_env"]
    payload = [expected_payload(argument) for argument in info.get("payload_arguments", [])]
    per_thread = info.get("per_thread_payload_arguments", [])
    buffers = info.get("per_thread_memory_buffers", [])
    simd = environment["simd_size"]
    scratch = sum(b["size"] for b in buffers if b["type"] == "scratch")
    private = sum(b["size"] * (simd if b.get("is_simt_thread") else 1) for b in buffers if b["type"] == "global")
    text = next(s["data"] for s in sections if s["name"] == ".text." + info["name"])
    return {
        "name": info["name"],
        "grf_count": environment["grf_count"],
        "simd_size": simd,
        "barrier_count": environment.get("barrier_count", 0),
        "slm_size": environment.get("slm_size", 0),
        "inline_data": environment.get("inline_data_payload_size", 0),
        "skip_per_thread_load": environment.get("offset_to_skip_per_thread_data_load", 0),
        "required_group_size": environment.get("required_work_group_size", []),
        "required_sub_group_size": environment.get("required_sub_group_size", 0),
        "has_dpas": environment.get("has_dpas", False),
        "require_implicit_args": environment.get("require_iab", False) or environment.get("has_stack_calls", False),
        "packed_local_ids": any(a["arg_type"] == "packed_local_ids" for a in per_thread),
        "local_id_bytes": sum(a["size"] for a in per_thread if a["arg_type"] == "local_id"),
        "scratch_bytes": scratch,
        "spill_bytes": environment.get("spill_size", scratch if simd == 1 else 0),
        "private_bytes": private,
        "argument_count": max([p["index"] + 1 for p in payload], default=0),
        "payload": payload,
        "binding_table": sorted([b["bti_value"], b["arg_index"]] for b in info.get("binding_table_indices", [])),
        "text_bytes": len(text),
        "text_hash": fnv(text),
    }


def expected_relocations(sections: list[dict], name: str) -> list[dict]:
    table = next((s for s in sections if s["name"] == ".rel" + name), None)
    result = []
    for offset, info in struct.iter_unpack("<QQ", table["data"] if table else b""):
        symbols = sections[table["link"]]
        text, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", symbols["data"], (info >> 32) * 24)
        strings = sections[symbols["link"]]["data"]
        home_name = sections[home]["name"] if home else ""
        if home_name.startswith(".bss."):
            home_name = ".data" + home_name[4:]
            value += sum(s["size"] for s in sections if s["name"] == home_name)
        result.append(
            {
                "offset": offset,
                "type": info & 0xFFFFFFFF,
                "symbol": strings[text : strings.index(b"\0", text)].decode(),
                "is_function": home_name.startswith(".text"),
                "section": home_name,
                "value": value,
            }
        )
    return result


def check_against_yaml(family: str, data: bytes) -> None:
    yaml = pytest.importorskip("yaml")
    sections = sections_of(data)
    text = next(s["data"] for s in sections if s["name"] == ".ze_info")
    described = describe(family, data)
    assert "error" not in described, described["error"]
    kernels = [
        k for k in yaml.safe_load(text.rstrip(b"\0"))["kernels"] if k["name"] != "Intel_Symbol_Table_Void_Program"
    ]
    assert [k["name"] for k in described["kernels"]] == [k["name"] for k in kernels]
    for got, info in zip(described["kernels"], kernels, strict=True):
        relocations = got.pop("relocations")
        assert got == expected_kernel(info, sections)
        assert relocations == expected_relocations(sections, ".text." + info["name"])
    for kind in ("const", "global", "const.string"):
        initialised = [s["data"] for s in sections if s["name"] == ".data." + kind]
        zeros = [s["size"] for s in sections if s["name"] == ".bss." + kind]
        if initialised or zeros:
            content = initialised[0] if initialised else b""
            want = {"bytes": len(content), "hash": fnv(content), "zeros": sum(zeros)}
            assert described["data"].pop(kind) == want
    assert described["data"] == {}


# ---- binaries of the compiler -------------------------------------------------------------------


@pytest.fixture(scope="module", params=FAMILIES)
def compiled(request, tmp_path_factory) -> tuple[str, bytes]:
    return request.param, compile_opencl(KERNELS, request.param, tmp_path_factory.mktemp(request.param))


def test_compiled_kernels_read_as_pyyaml_reads_them(compiled):
    check_against_yaml(*compiled)


def test_another_family_is_refused(compiled):
    family, data = compiled
    other = FAMILIES[FAMILIES.index(family) - 1]
    assert refusal(other, data) == f"the native binary was built for {family}, the device is {other}"


# ---- binaries made here -------------------------------------------------------------------------

NOTE_CORE, NOTE_PRODUCT, NOTE_IP = 2, 1, 6


def note(kind: int, value: int) -> bytes:
    return struct.pack("<III8sI", 8, 4, kind, b"IntelGT\0", value)


def make_elf(sections: list[tuple[str, int, bytes | int]], links: dict[str, int] | None = None) -> bytes:
    """An ELF file of (name, type, content); a number as content is the size of a section without bytes."""
    sections = [("", 0, b""), *sections, (".strtab", 3, b"")]
    names, offsets = b"\0", []
    for name, _, _ in sections:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    sections[-1] = (".strtab", 3, names)
    body, heads = b"", b""
    for (name, kind, content), name_offset in zip(sections, offsets, strict=True):
        size = content if isinstance(content, int) else len(content)
        link = (links or {}).get(name, len(sections) - 1)
        heads += struct.pack("<IIQQQQIIQQ", name_offset, kind, 0, 0, 64 + len(body), size, link, 0, 1, 0)
        body += b"" if isinstance(content, int) else content
    head = struct.pack(
        "<4sBBB9xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        1,
        1,
        1,
        205,
        1,
        0,
        0,
        64 + len(body),
        0,
        64,
        0,
        0,
        64,
        len(sections),
        len(sections) - 1,
    )
    return head + body + heads


MINIMAL = """version: '1.73'
kernels:
  - name: k
    execution_env:
      grf_count: 128
      simd_size: 16
"""


def make_zebin(ze_info: str = MINIMAL, family: str = "pvc", more: list | None = None, links: dict | None = None):
    sections = [
        (".text.k", 1, bytes(range(64))),
        (".ze_info", 0xFF000011, ze_info.encode()),
        (".note.intelgt.compat", 7, note(NOTE_CORE, GFX_CORE[family])),
    ]
    return make_elf(sections + (more or []), links)


def with_environment(line: str) -> str:
    return MINIMAL + f"      {line}\n"


def test_minimal_binary_reads():
    described = describe("pvc", make_zebin())
    assert described["kernels"][0]["name"] == "k"
    assert described["kernels"][0]["text_hash"] == fnv(bytes(range(64)))


STYLES = {
    "comments": "# top\nversion: \"1.73\" # why\nkernels: # list\n  - name: 'k' # x\n    execution_env:\n      grf_count: 128\n      simd_size: 16\n",
    "unindented list": "---\nversion: 1.7\nkernels:\n- name: k\n  execution_env:\n    grf_count: 128\n    simd_size: 8\n...\n",
    "item below the dash": "version: 1.7\nkernels:\n  -\n    name: k\n    execution_env:\n      simd_size: 8\n      grf_count: 256\n",
    "wrapped flow list": with_environment("required_work_group_size: [ 8,\n        4,\n 2 ]"),
    "carriage returns": MINIMAL.replace("\n", "\r\n"),
    "escapes": MINIMAL.replace("name: k", 'name: "\\x6b"'),
}


@pytest.mark.parametrize("style", sorted(STYLES))
def test_yaml_styles(style):
    yaml = pytest.importorskip("yaml")
    parsed = yaml.safe_load(STYLES[style])["kernels"][0]
    got = describe("pvc", make_zebin(STYLES[style]))["kernels"][0]
    environment = parsed["execution_env"]
    assert got["name"] == parsed["name"]
    assert (got["simd_size"], got["grf_count"]) == (environment["simd_size"], environment["grf_count"])
    assert got["required_group_size"] == environment.get("required_work_group_size", [])


BAD_YAML = {
    "version: 1.7\n\tkernels:\n": "line 2: a tab",
    "version: 1.7\nversion: 1.7\n": "line 2: a key for the second time",
    "version: 1.7\n---\nkernels:\n": "a second document",
    "version: [1, [2]]\n": "nested flow",
    "version: [1, 2\n": "a flow list without its end",
    "version: {a: 1}\n": "a flow map",
    "version: |\n  text\n": "beyond the subset",
    "version: &a 1\n": "beyond the subset",
    "version: 'abc\n": "text behind a quoted scalar",
    "version: 1.7\n  kernels: 2\n": "indentation that fits nothing",
    "version: 1.7\nkernels\n": 'expected "key: value"',
    "- " * 40 + "x": "nested too deeply",
    "": ".ze_info is no map",
    "version: 2.0\n": "version 2.0",
    "version: 1.7\nsurprise: 1\n": "unknown part: surprise",
}


@pytest.mark.parametrize("text", BAD_YAML, ids=lambda text: repr(text[:24]))
def test_bad_yaml_is_refused(text):
    assert BAD_YAML[text] in refusal("pvc", make_zebin(text))


REFUSED = {
    "has_printf_calls: true": "needs printf",
    "has_indirect_calls: true": "needs indirect calls",
    "has_rtcalls: true": "needs ray tracing",
    "generate_local_id: true": "needs local ids generated by the hardware",
    "require_sync_buffer: true": "needs global barriers",
    "require_assert_buffer: true": "needs assert",
    "has_printf_calls: maybe": "neither true nor false",
    "new_flag: 1": "unknown property of its environment: new_flag",
    "work_group_walk_order_dimensions: [ 1, 0, 0 ]": "do not run fastest along x",
    "inline_data_payload_size: 16": "not 0 or 32",
    "slm_size: 200000": "outside 0 .. 131072",
    "barrier_count: x": "barrier_count is no integer",
    "offset_to_skip_per_thread_data_load: 64": "lies outside the code",
    "required_work_group_size: [ 1, 2 ]": "is no triple",
}


@pytest.mark.parametrize("line", REFUSED, ids=str)
def test_environment_that_cannot_be_honoured_is_refused(line):
    message = refusal("pvc", make_zebin(with_environment(line)))
    assert message.startswith("kernel k: ") and REFUSED[line] in message


@pytest.mark.parametrize(("count", "families"), [(64, ["ptl"]), (96, ["ptl"]), (224, []), (256, FAMILIES), (512, [])])
def test_number_of_registers(count, families):
    for family in FAMILIES:
        zebin = make_zebin(MINIMAL.replace("grf_count: 128", f"grf_count: {count}"), family)
        wrong = f"grf_count is {count}, which {family} does not have"
        assert (wrong in describe(family, zebin).get("error", "")) == (family not in families)


@pytest.mark.parametrize(
    "line", ["has_printf_calls: false", "has_dpas: true", "spill_size: 64", "thread_scheduling_mode: age_based"]
)
def test_harmless_environment_is_accepted(line):
    assert "error" not in describe("pvc", make_zebin(with_environment(line)))


def with_part(part: str) -> str:
    return MINIMAL + "".join(f"    {line}\n" for line in part.splitlines())


PARTS = {
    "payload_arguments:\n  - { }": "a flow map",
    "payload_arguments:\n  - arg_type: image_height\n    offset: 0\n    size: 4": "type image_height is not simulated",
    "payload_arguments:\n  - arg_type: arg_byvalue\n    offset: 0\n    size: 4": "without arg_index",
    "payload_arguments:\n  - arg_type: local_size\n    offset: 0\n    size: 5": "a wrong size",
    "payload_arguments:\n  - arg_type: local_size\n    offset: 99999999\n    size: 4": "outside 0 .. 65536",
    "payload_arguments:\n  - arg_type: local_size\n    size: 4": "without offset or size",
    "payload_arguments:\n  - arg_type: arg_bypointer\n    offset: 0\n    size: 8\n    arg_index: 0\n    addrspace: image": "address space image",
    "payload_arguments:\n  - arg_type: arg_bypointer\n    offset: 0\n    size: 8\n    arg_index: 0\n    addrmode: far": "unknown addrmode far",
    "payload_arguments: 3": "payload_arguments is no list",
    "per_thread_payload_arguments:\n  - arg_type: sampler\n    size: 6": "per-thread data of type sampler",
    "per_thread_memory_buffers:\n  - type: slm\n    usage: single_space\n    size: 4": "memory of type slm",
    "per_thread_memory_buffers:\n  - type: scratch\n    usage: single_space\n    size: 4\n    slot: 1": "slot is 1",
    "inline_samplers:\n  - sampler_index: 0": "samplers are not simulated",
    "user_attributes:\n  invalid_kernel: uses x": "invalid: uses x",
    "surprise: 1": "unknown property: surprise",
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: repr(part[-50:]))
def test_parts_that_cannot_be_honoured_are_refused(part):
    assert PARTS[part] in refusal("pvc", make_zebin(with_part(part)))


def test_notes():
    def with_note(body: bytes) -> bytes:
        return make_elf(
            [(".text.k", 1, b"x" * 64), (".ze_info", 1, MINIMAL.encode()), (".note.intelgt.compat", 7, body)]
        )

    assert "error" not in describe("pvc", with_note(b""))
    old = note(NOTE_PRODUCT, 1270) + note(NOTE_CORE, 0)  # Debian 12's ocloc names the product only
    assert "error" not in describe("dg2", with_note(old))
    assert "built for dg2" in refusal("pvc", with_note(old))
    assert "core family 0xc12" in refusal("pvc", with_note(note(NOTE_CORE, 0xC12)))
    assert "cut off" in refusal("pvc", with_note(note(NOTE_CORE, 0xC08)[:20]))
    assert "cut off" in refusal("pvc", with_note(struct.pack("<III", 0xFFFFFFF0, 0xFFFFFFF0, 2)))


def test_relocations_and_data():
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 2, 0, 0, 4, 2, 4)  # ".text.k" as its name, in .data.const
    symbols += struct.pack("<IBBHQQ", 2, 0, 0, 5, 2, 4)  # in .bss.const
    more = [
        (".data.const", 1, b"abcd"),
        (".bss.const", 8, 100),
        (".symtab", 2, symbols),
        (".rel.text.k", 9, struct.pack("<QQQQ", 8, 1 << 32 | 1, 16, 2 << 32 | 2)),
    ]
    described = describe("pvc", make_zebin(more=more, links={".rel.text.k": 6}))
    assert described["data"] == {"const": {"bytes": 4, "hash": fnv(b"abcd"), "zeros": 100}}
    first, second = described["kernels"][0]["relocations"]
    assert first == {
        "offset": 8,
        "type": 1,
        "symbol": ".text.k",
        "is_function": False,
        "section": ".data.const",
        "value": 2,
    }
    assert (second["section"], second["value"]) == (".data.const", 6)
    for entries, text in (
        ((57, 1 << 32 | 1), "outside .text.k"),
        ((0, 9 << 32 | 1), "uses symbol 9"),
        ((0, 1 << 32 | 6), "relocation of type 6"),
    ):
        more[-1] = (".rel.text.k", 9, struct.pack("<QQ", *entries))
        assert text in refusal("pvc", make_zebin(more=more, links={".rel.text.k": 6}))


def test_unknown_data_and_structure_are_refused():
    assert ".data.extra is not simulated" in refusal("pvc", make_zebin(more=[(".data.extra", 1, b"x")]))
    assert ".rel.data.const is not simulated" in refusal("pvc", make_zebin(more=[(".rel.data.const", 9, b"x" * 16)]))
    assert "two sections .text.k" in refusal("pvc", make_zebin(more=[(".text.k", 1, b"x")]))
    assert "more than 4 GiB" in refusal("pvc", make_zebin(more=[(".bss.const", 8, 1 << 40)]))
    assert "no machine code" in refusal("pvc", make_zebin(MINIMAL.replace("name: k", "name: other")))
    assert "twice" in refusal("pvc", make_zebin(MINIMAL + MINIMAL.split("kernels:\n")[1]))
    assert "more than 8 MiB" in refusal("pvc", make_zebin("- a\n" * (3 << 20)))
    assert "no .ze_info" in refusal("pvc", make_elf([(".text.k", 1, b"x" * 16)]))
    assert "not a native binary" in refusal("pvc", b"")
    assert "not a native binary" in refusal("pvc", b"\x03\x02\x23\x07" + bytes(100))
    assert "no simulated device 'xyz'" in refusal("xyz", make_zebin())


@pytest.mark.parametrize(
    "text", ["- a\n" * (1 << 20), "version: [\n" + ",\n" * (1 << 20), "a: \n" * (1 << 20), "#\n" * (1 << 21)]
)
def test_hostile_descriptions_end_soon(text):
    assert refusal("pvc", make_zebin(text))


# ---- archives -----------------------------------------------------------------------------------


def make_archive(*members: bytes) -> bytes:
    result = b"!<arch>\n"
    for i, member in enumerate(members):
        result += (
            f"{f'm{i}/':16}{0:<12}{0:<6}{0:<6}{644:<8}{len(member):<10}`\n".encode()
            + member
            + b"\n" * (len(member) % 2)
        )
    return result


def test_archive_gives_the_member_for_the_device():
    members = [
        make_zebin(MINIMAL.replace("16", str(simd)), family) for simd, family in ((8, "dg2"), (16, "pvc"), (32, "bmg"))
    ]
    archive = make_archive(b"padding", *members, b"")
    for family, simd in (("dg2", 8), ("pvc", 16), ("bmg", 32)):
        assert describe(family, archive)["kernels"][0]["simd_size"] == simd
    assert "no native binary for bmg, only for: dg2, pvc" in refusal("bmg", make_archive(*members[:2]))


def test_archive_prefers_the_exact_device():
    def member(simd: int, release: int) -> bytes:
        notes = note(NOTE_CORE, GFX_CORE["bmg"]) + note(NOTE_IP, 20 << 22 | release << 14)
        text = MINIMAL.replace("16", str(simd))
        return make_elf([(".text.k", 1, b"x" * 64), (".ze_info", 1, text.encode()), (".note.intelgt.compat", 7, notes)])

    for archive in (make_archive(member(8, 4), member(16, 1)), make_archive(member(16, 1), member(8, 4))):
        assert describe("bmg", archive)["kernels"][0]["simd_size"] == 16


def test_damaged_archives_are_refused():
    whole = make_archive(make_zebin())
    assert "cut off" in refusal("pvc", whole[:-9])
    assert "cut off in a header" in refusal("pvc", whole[:30])
    assert "damaged" in refusal("pvc", whole.replace(b"`\n", b"``", 1))


# ---- damage -------------------------------------------------------------------------------------


def damage(data: bytes, rng: random.Random) -> bytes:
    broken = bytearray(data)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(broken[: rng.randrange(len(broken))])
    # Headers and tables are hit more often than code.
    zones = [(0, 64), (struct.unpack_from("<Q", data, 0x28)[0], len(data)), (0, len(data))]
    for section in (".ze_info", ".symtab", ".note.intelgt.compat"):
        at = data.find(next((s["data"] for s in sections_of(data) if s["name"] == section), b"")[:64] or b"\xff" * 99)
        if at >= 0:
            zones.append((at, min(at + 4096, len(data))))
    low, high = rng.choice(zones)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        at = rng.randrange(low, high)
        if kind == 1:
            broken[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            broken[at] = rng.choice([0, 0xFF, 0x7F, 0x80, rng.randrange(256)])
        elif kind == 3:
            broken[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\0\0\0\0\0\0\0\x80"])
        else:
            broken[at] = rng.choice(b"-[]{}:'\"\\#,&|\n \t09")
    return bytes(broken)


def check_damaged(family: str, data: bytes, count: int) -> tuple[int, int]:
    rng = random.Random(7)
    refused = accepted = 0
    for _ in range(count):
        described = describe(family, damage(data, rng))
        if "error" in described:
            assert described["error"]
            refused += 1
        else:
            accepted += 1  # the code, padding or a name was hit
    return refused, accepted


def test_damaged_files_never_crash(compiled):
    refused, accepted = check_damaged(*compiled, 1000)
    assert refused > 300, (refused, accepted)


def test_damaged_small_files_never_crash():
    refused, accepted = check_damaged("pvc", make_zebin(with_environment("slm_size: 100")), 1000)
    assert refused > 300, (refused, accepted)

"""Messages of single instructions: loads, stores and atomics of global and local memory, barriers, what is refused."""

import ctypes
import itertools
import random

import numpy as np
import pytest
from assembler import GRF_BYTES, Ins, State, assemble, execute
from instruction_maker import FAMILIES
from toolbox import function

BYTES = 4096
ADDRESS, DATA, RESULT = 20, 40, 80  # registers
VECTOR = {1: 0, 2: 1, 3: 2, 4: 3, 8: 4, 16: 5, 32: 6, 64: 7}
# name -> code, bytes in memory, bytes in a register
SIZES = {"d16": (1, 2, 2), "d32": (2, 4, 4), "d64": (3, 8, 8), "d8u32": (4, 1, 4), "d16u32": (5, 2, 4)}
LOAD, LOAD_QUAD, STORE, STORE_QUAD = 0, 2, 4, 6


class Memory:
    """An allocation of the simulator: its address and a view of its bytes."""

    def __init__(self, size: int = BYTES):
        address, host = ctypes.c_uint64(), ctypes.c_void_p()
        call = function("xesim_allocate", ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
        assert call(size, ctypes.addressof(address), ctypes.addressof(host)) is None
        self.address = address.value
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host.value))

    def __del__(self):
        function("xesim_release", ctypes.c_uint64)(self.address)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def send(family, space, lanes, opcode, size, data=0, result=0, vector=1, transpose=False, pred=None, mask=None) -> Ins:
    """A message of `data` or `result` registers; quad messages take a component mask for the vector."""
    code, _, _ = SIZES[size]
    wide = space == "ugm"
    address = max(1, lanes * (8 if wide else 4) // GRF_BYTES[family])
    count = mask if mask is not None else VECTOR[vector]
    desc = opcode | (3 if wide else 2) << 7 | code << 9 | count << 12 | transpose << 15 | result << 20 | address << 25
    prefix = f"(f{pred[0]}.{pred[1]}) " if pred else ""
    target = f"r{RESULT}" if result else "null"
    source = f"r{DATA}:{data}" if data else "null:0"
    return Ins("send", lanes, text=f"{prefix}send.{space} ({lanes}|M0) {target} r{ADDRESS} {source} 0x0 0x{desc:08X}")


def put(state: State, register: int, data: bytes) -> None:
    at = register * GRF_BYTES[state.family]
    state.grf[at : at + len(data)] = data


def component_stride(family: str, lanes: int, register_bytes: int) -> int:
    """A component has room for as many lanes as a register has dwords, however few execute."""
    grf = GRF_BYTES[family]
    return -(-max(lanes, grf // 4) * register_bytes // grf) * grf


def put_addresses(state: State, space: str, base: int, offsets: list[int]) -> None:
    kind = np.uint64 if space == "ugm" else np.uint32
    put(
        state, ADDRESS, (np.array(offsets, np.uint64) + np.uint64(base if space == "ugm" else 0)).astype(kind).tobytes()
    )


def run(state: State, code: list[Ins], **options) -> None:
    fault = execute(state, assemble(state.family, code), slm_bytes=BYTES, **options)
    assert fault is None, fault


def fresh(family: str, rng: random.Random) -> State:
    state = State.zero(family)
    state.grf[:] = rng.randbytes(len(state.grf))
    return state


WIDTHS = {"dg2": (1, 8, 16), "pvc": (1, 16, 32), "bmg": (1, 16, 32)}
GATHERS = [*itertools.product(["d8u32", "d16u32"], [1]), *itertools.product(["d32", "d64"], [1, 2, 3, 4])]


@pytest.mark.parametrize("size, vector", GATHERS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_loads_gather(family, size, vector, memory):
    rng = random.Random(f"{size} {vector}")
    _, in_memory, in_register = SIZES[size]
    memory.bytes[:] = np.frombuffer(rng.randbytes(BYTES), np.uint8)
    for lanes in WIDTHS[family]:
        state, mask = fresh(family, rng), rng.getrandbits(32) | 1
        offsets = [rng.randrange((BYTES - 64) // in_memory) * in_memory for _ in range(lanes)]
        put_addresses(state, "ugm", memory.address, offsets)
        stride = component_stride(family, lanes, in_register)
        state.flags[1] = rng.getrandbits(32) | 1
        before = state.copy()
        run(
            state,
            [send(family, "ugm", lanes, LOAD, size, 0, vector * stride // GRF_BYTES[family], vector, pred=(1, 0))],
            execution_mask=mask,
        )
        want = bytearray(before.grf)
        low_only = family != "bmg" and in_memory < in_register  # the upper bits are not defined there
        for lane, component in itertools.product(range(lanes), range(vector)):
            if mask & state.flags[1] & 1 << lane == 0:
                continue
            first = offsets[lane] + component * in_memory
            at = RESULT * GRF_BYTES[family] + component * stride + lane * in_register
            value = memory.bytes[first : first + in_memory].tobytes()
            want[at : at + in_register] = value + bytes(in_register - in_memory)
            if low_only:
                want[at + in_memory : at + in_register] = state.grf[at + in_memory : at + in_register]
        assert state.grf == want


@pytest.mark.parametrize("size, vector", GATHERS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_stores_scatter(family, size, vector, memory):
    rng = random.Random(f"{size} {vector}")
    _, in_memory, in_register = SIZES[size]
    for lanes in WIDTHS[family]:
        state, mask = fresh(family, rng), rng.getrandbits(32) | 1
        slots = rng.sample(range(BYTES // (in_memory * vector) - 1), lanes)
        offsets = [slot * in_memory * vector for slot in slots]
        put_addresses(state, "ugm", memory.address, offsets)
        stride = component_stride(family, lanes, in_register)
        want = memory.bytes.copy()
        for lane, component in itertools.product(range(lanes), range(vector)):
            if mask >> lane & 1:
                at = DATA * GRF_BYTES[family] + component * stride + lane * in_register
                first = offsets[lane] + component * in_memory
                want[first : first + in_memory] = np.frombuffer(state.grf[at : at + in_memory], np.uint8)
        run(
            state,
            [send(family, "ugm", lanes, STORE, size, vector * stride // GRF_BYTES[family], vector=vector)],
            execution_mask=mask,
        )
        assert (memory.bytes == want).all()


@pytest.mark.parametrize("components", range(1, 16))
@pytest.mark.parametrize("family", FAMILIES)
def test_quads_pack_the_enabled_components(family, components, memory):
    rng = random.Random(components)
    memory.bytes[:] = np.frombuffer(rng.randbytes(BYTES), np.uint8)
    lanes = WIDTHS[family][1]
    state = fresh(family, rng)
    offsets = [16 * slot for slot in rng.sample(range(BYTES // 16), lanes)]
    put_addresses(state, "ugm", memory.address, offsets)
    stride, enabled = component_stride(family, lanes, 4), [i for i in range(4) if components >> i & 1]
    registers = len(enabled) * stride // GRF_BYTES[family]
    run(state, [send(family, "ugm", lanes, LOAD_QUAD, "d32", 0, registers, mask=components)])
    for place, component in enumerate(enabled):
        at = RESULT * GRF_BYTES[family] + place * stride
        want = b"".join(memory.bytes[o + 4 * component : o + 4 * component + 4].tobytes() for o in offsets)
        assert state.grf[at : at + 4 * lanes] == want
    before = memory.bytes.copy()
    data = state.grf[DATA * GRF_BYTES[family] :]
    run(state, [send(family, "ugm", lanes, STORE_QUAD, "d32", registers, mask=components)])
    for (place, component), lane in itertools.product(enumerate(enabled), range(lanes)):
        at = offsets[lane] + 4 * component
        before[at : at + 4] = np.frombuffer(data[place * stride + 4 * lane : place * stride + 4 * lane + 4], np.uint8)
    assert (memory.bytes == before).all()


@pytest.mark.parametrize(
    "size, vector", [("d32", v) for v in VECTOR if v != 3] + [("d64", v) for v in (1, 2, 4, 8, 16, 32)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_contiguous(family, size, vector, memory):
    rng = random.Random(vector)
    _, width, _ = SIZES[size]
    total = width * vector
    registers = -(-total // GRF_BYTES[family])
    state = fresh(family, rng)
    memory.bytes[:] = np.frombuffer(rng.randbytes(BYTES), np.uint8)
    offset = rng.randrange((BYTES - total) // width) * width
    put_addresses(state, "ugm", memory.address, [offset])
    want = bytearray(state.grf)
    at = RESULT * GRF_BYTES[family]
    want[at : at + total] = memory.bytes[offset : offset + total].tobytes()
    run(state, [send(family, "ugm", 1, LOAD, size, 0, registers, vector, True)])
    assert state.grf == want
    expected = memory.bytes.copy()
    source = DATA * GRF_BYTES[family]
    expected[offset : offset + total] = np.frombuffer(state.grf[source : source + total], np.uint8)
    run(state, [send(family, "ugm", 1, STORE, size, registers, vector=vector, transpose=True)])
    assert (memory.bytes == expected).all()


@pytest.mark.parametrize("size, vector", GATHERS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_local_memory_keeps_what_is_stored(family, size, vector):
    rng = random.Random(vector)
    _, in_memory, in_register = SIZES[size]
    lanes = WIDTHS[family][1]
    state = fresh(family, rng)
    offsets = [slot * in_memory * vector for slot in rng.sample(range(BYTES // (in_memory * vector)), lanes)]
    put_addresses(state, "slm", 0, [o | 0x10000000 for o in offsets])  # the tag of generic pointers is ignored
    stride = component_stride(family, lanes, in_register)
    registers = vector * stride // GRF_BYTES[family]
    run(
        state,
        [
            send(family, "slm", lanes, STORE, size, registers, vector=vector),
            send(family, "slm", lanes, LOAD, size, 0, registers, vector),
        ],
    )
    for lane, component in itertools.product(range(lanes), range(vector)):
        places = [r * GRF_BYTES[family] + component * stride + lane * in_register for r in (DATA, RESULT)]
        assert len({bytes(state.grf[at : at + in_memory]) for at in places}) == 1


def wrap(x: int) -> int:
    return x & 0xFFFFFFFF


def signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


ATOMICS = {
    "inc": (0x08, lambda old, a, b: wrap(old + 1), 0),
    "dec": (0x09, lambda old, a, b: wrap(old - 1), 0),
    "store": (0x0B, lambda old, a, b: a, 1),
    "add": (0x0C, lambda old, a, b: wrap(old + a), 1),
    "sub": (0x0D, lambda old, a, b: wrap(old - a), 1),
    "smin": (0x0E, lambda old, a, b: min(old, a, key=signed), 1),
    "smax": (0x0F, lambda old, a, b: max(old, a, key=signed), 1),
    "umin": (0x10, lambda old, a, b: min(old, a), 1),
    "umax": (0x11, lambda old, a, b: max(old, a), 1),
    "cas": (0x12, lambda old, a, b: b if old == a else old, 2),
    "and": (0x18, lambda old, a, b: old & a, 1),
    "or": (0x19, lambda old, a, b: old | a, 1),
    "xor": (0x1A, lambda old, a, b: old ^ a, 1),
}


@pytest.mark.parametrize("op", ATOMICS)
@pytest.mark.parametrize("family", FAMILIES)
def test_atomics_return_the_old_value(family, op, memory):
    code, new, operands = ATOMICS[op]
    rng = random.Random(op)
    lanes = WIDTHS[family][1]
    words = memory.bytes.view(np.uint32)
    words[:] = np.frombuffer(rng.randbytes(BYTES), np.uint32)
    state = fresh(family, rng)
    slots = [rng.randrange(4) if lane % 2 else lane for lane in range(lanes)]  # some share a word: lane by lane
    put_addresses(state, "ugm", memory.address, [4 * slot for slot in slots])
    stride = component_stride(family, lanes, 4)
    if op == "cas":  # half of them hit
        compare = [int(words[slot]) if rng.random() < 0.5 else 5 for slot in slots]
        put(state, DATA, np.array(compare, np.uint32).tobytes())
    data = np.frombuffer(state.grf, np.uint8)[DATA * GRF_BYTES[family] :]
    first, second = (data[i * stride : i * stride + 4 * lanes].view(np.uint32).tolist() for i in (0, 1))
    expected, old = words.copy(), []
    for lane, slot in enumerate(slots):
        old.append(int(expected[slot]))
        expected[slot] = new(old[-1], first[lane], second[lane])
    del data
    registers = stride // GRF_BYTES[family]
    run(state, [send(family, "ugm", lanes, code, "d32", operands * registers, registers)])
    assert (words == expected).all()
    at = RESULT * GRF_BYTES[family]
    assert np.frombuffer(bytes(state.grf[at : at + 4 * lanes]), np.uint32).tolist() == old


@pytest.mark.parametrize("family", FAMILIES)
def test_float_atomics_add(family, memory):
    lanes = WIDTHS[family][1]
    state = State.zero(family)
    put_addresses(state, "ugm", memory.address, [4 * (lane % 3) for lane in range(lanes)])
    put(state, DATA, np.arange(lanes, dtype=np.float32).tobytes())
    memory.bytes[:16] = 0
    run(state, [send(family, "ugm", lanes, 0x13, "d32", component_stride(family, lanes, 4) // GRF_BYTES[family])])
    want = [sum(range(i, lanes, 3)) for i in range(3)]
    assert memory.bytes[:12].view(np.float32).tolist() == want


@pytest.mark.parametrize("family", FAMILIES)
def test_stray_accesses_are_found(family, memory):
    for offset in (BYTES, BYTES - 2, -4, 1 << 40):
        for opcode in (LOAD, STORE):
            state = State.zero(family)
            put_addresses(state, "ugm", 0, [(memory.address + offset) % (1 << 64)])
            ins = send(family, "ugm", 1, opcode, "d32", int(opcode == STORE), int(opcode == LOAD))
            fault = execute(state, assemble(family, [ins]))
            assert fault is not None and "send.ugm" in fault and f"{(memory.address + offset):x}" in fault
    state = State.zero(family)
    put_addresses(state, "slm", 0, [BYTES])
    fault = execute(state, assemble(family, [send(family, "slm", 1, LOAD, "d32", 0, 1)]), slm_bytes=BYTES)
    assert fault is not None and "send.slm" in fault


@pytest.mark.parametrize("family", FAMILIES)
def test_disabled_lanes_may_hold_any_address(family, memory):
    lanes = WIDTHS[family][1]
    state = State.zero(family)
    put_addresses(state, "ugm", 0, [memory.address if lane == 3 else 0xDEAD0000 for lane in range(lanes)])
    registers = component_stride(family, lanes, 4) // GRF_BYTES[family]
    code = [send(family, "ugm", lanes, LOAD, "d32", 0, registers)]
    run(state, code, execution_mask=8)
    assert execute(state, assemble(family, code), execution_mask=24) is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_prefetches_touch_nothing(family):
    state = State.zero(family)
    put_addresses(state, "ugm", 0, [0xDEAD0000])
    before = bytes(state.grf)
    run(state, [send(family, "ugm", 1, LOAD, "d32", vector=16, transpose=True)])
    assert state.grf == before


@pytest.mark.parametrize("desc", [0x02108520, 0x0210852F, 0x02108E80, 0x0210851E], ids=hex)
@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_messages_are_refused(family, desc):
    ins = Ins("send", 1, text=f"send.ugm (1|M0) r{RESULT} r{ADDRESS} null:0 0x0 0x{desc:08X}")
    fault = execute(State.zero(family), assemble(family, [ins]))
    assert fault is not None and "send" in fault


def test_dg2_has_no_2d_blocks():
    ins = Ins("send", 1, text=f"send.ugm (1|M0) r{RESULT} r{ADDRESS} null:0 0x0 0x02400203")
    assert "2D block" in (execute(State.zero("dg2"), assemble("dg2", [ins])) or "")


# ---- several threads ----------------------------------------------------------------------------


def exchange(family: str, with_barrier: bool) -> list[Ins]:
    """Every thread writes its number + 1 to local memory; after a barrier each reads its neighbour's."""
    lines = [
        "(W) and (1|M0) r10.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud",
        f"(W) shl (1|M0) r{ADDRESS}.0<1>:ud r10.0<0;1,0>:ud 2:uw",
        f"(W) add (1|M0) r{DATA}.0<1>:ud r10.0<0;1,0>:ud 1:uw",
        f"(W) send.slm (1|M0) null r{ADDRESS} r{DATA}:1 0x0 0x02008504",
    ]
    if with_barrier:
        lines += [
            "(W) mov (8|M0) r12.0<1>:ud 0:uw",
            "(W) and (1|M0) r12.2<1>:ud r0.2<0;1,0>:ud 0xFF000000:ud",
            "(W) shr (1|M0) r13.0<1>:ud r12.2<0;1,0>:ud 8:uw",
            "(W) or (1|M0) r12.2<1>:ud r12.2<0;1,0>:ud r13.0<0;1,0>:ud",
            "(W) send.gtwy (1|M0) null r12 null:0 0x0 0x02000004",
            "(W) sync.bar null" if family == "dg2" else "(W) sync.bar 0x0",
        ]
    lines += [
        f"(W) add (1|M0) r{ADDRESS}.0<1>:ud r{ADDRESS}.0<0;1,0>:ud 4:uw",
        f"(W) and (1|M0) r{ADDRESS}.0<1>:ud r{ADDRESS}.0<0;1,0>:ud 0x1F:ud",
        f"(W) send.slm (1|M0) r{RESULT} r{ADDRESS} null:0 0x0 0x02108500",
    ]
    return [Ins("x", 1, text=line) for line in lines]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_barriers_order_the_threads_of_a_group(family, seed):
    state = State.zero(family)
    run(state, exchange(family, True), threads=8, check=f"slm-races,interleave,seed={seed}")
    at = RESULT * GRF_BYTES[family]
    assert int.from_bytes(state.grf[at : at + 4], "little") == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_races_without_a_barrier_are_found(family):
    code = assemble(family, exchange(family, False))
    faults = [
        execute(State.zero(family), code, threads=8, slm_bytes=BYTES, check=f"slm-races,interleave,seed={s}")
        for s in range(8)
    ]
    assert any(fault is not None and "race" in fault for fault in faults)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wait_without_signal_is_a_deadlock(family):
    wait = Ins("sync", 1, text="(W) sync.bar null" if family == "dg2" else "(W) sync.bar 0x0")
    fault = execute(State.zero(family), assemble(family, [wait]), threads=2)
    assert fault is not None and "deadlock" in fault.lower()


# ---- values that nobody defined -----------------------------------------------------------------

UNDEFINED_USES = {
    "address": "send.ugm (1|M0) r80 r20 null:0 0x0 0x02108580",
    "flag": "(f0.0) goto (16|M0) B B",
    "jump": "(W&f0.0) jmpi B",
    "index": "mov (8|M0) r80.0<1>:ud r[a0.0, 0]<1;1,0>:ud",
    "shared index": "(W) mov (1|M0) a0.0<1>:uw r20.0<0;1,0>:uw\nmov (8|M0) r80.0<1>:ud r[a0.0, 0]<1;1,0>:ud",
}


@pytest.mark.parametrize("use", UNDEFINED_USES)
@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_values_may_not_steer(family, use):
    lines = [Ins("x", 1, text=line) for line in UNDEFINED_USES[use].split("\n")]
    lines.append(Ins("join", 16, text="join (16|M0) C", label="B"))
    lines.append(Ins("nop", 1, text="nop", label="C"))
    fault = execute(State.zero(family), assemble(family, lines), undefined=True)
    assert fault is not None and "never given a value" in fault


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_values_may_not_be_stored_but_may_be_moved(family, memory):
    address = [
        f"(W) mov (1|M0) r{ADDRESS}.0<1>:ud 0x{memory.address & 0xFFFFFFFF:X}:ud",
        f"(W) mov (1|M0) r{ADDRESS}.1<1>:ud 0x{memory.address >> 32:X}:ud",
    ]
    half = GRF_BYTES[family] // 8
    some = [
        f"(W) mov ({half}|M0) r{DATA}.0<1>:ud 7:uw",
        f"(W) add ({2 * half}|M0) r50.0<1>:f r60.0<1;1,0>:f 0x3F800000:f",
    ]

    def outcome(count: int) -> str | None:
        store = send(family, "ugm", 1, STORE, "d32", 1, vector=count, transpose=True)
        code = [*(Ins("x", 1, text=line) for line in address + some), store]
        return execute(State.zero(family), assemble(family, code), undefined=True)

    assert outcome(half) is None
    fault = outcome(2 * half)
    assert fault is not None and "never given a value" in fault and f"r{DATA}" in fault

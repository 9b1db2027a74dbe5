"""Every opcode stands in a test of its semantics, or in the list of those that are refused."""

import pytest
import test_instructions_float
import test_instructions_flow
import test_instructions_integer
import test_instructions_logic
import test_instructions_moves
import test_instructions_regions
import test_instructions_select
from instruction_maker import FAMILIES, Maker

MODULES = [
    test_instructions_float, test_instructions_integer, test_instructions_logic, test_instructions_moves,
    test_instructions_regions, test_instructions_select,
]  # fmt: skip

NAMES = """
sync jmpi brd if brc else endif while break cont halt calla call ret goto join send sendc math add mul avg frc rndu rndd
rnde rndz mac mach lzd fbh fbl cbit addc subb add3 macl srnd dp4a dpas dpasw mad madm nop mov sel movi not and or xor
shr shl bfn asr ror rol cmp cmpn csel bfrev bfe bfi1 bfi2 illegal"""
OPCODES = set(NAMES.split())

ELSEWHERE = {
    "sync", "nop", "jmpi", "goto", "join", "call", "ret",  # test_instructions_flow
    "math",  # test_instructions_math
    "dpas",  # test_instructions_dpas
    "send",  # every program ends with one; test_simt and the tests of messages
}  # fmt: skip
# sendc is a send that waits for an earlier thread; movi has no form that IGA's assembler writes.
NOT_ASSEMBLED = {"sendc", "movi"}
NOT_OF_THE_FAMILY = {"dg2": {"macl", "srnd"}, "pvc": {"dpasw"}, "bmg": {"dpasw"}}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_opcode_is_tested(family):
    made = set()
    for module in MODULES:
        for case in module.CASES:
            maker = Maker(family, 0)
            case(maker)
            made |= {ins.op for ins in maker.made}
    covered = made | ELSEWHERE | set(test_instructions_flow.UNSUPPORTED) | NOT_ASSEMBLED
    missing = OPCODES - covered - NOT_OF_THE_FAMILY[family]
    assert not missing, f"no test for: {sorted(missing)}"
    assert covered <= OPCODES, sorted(covered - OPCODES)

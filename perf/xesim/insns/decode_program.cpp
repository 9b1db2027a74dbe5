// A kernel's code to instructions with what executes them.
#include "insns/dpas.hpp"
#include "insns/executor.hpp"

namespace xesim {
namespace {

// Bytes from the start of its file to the end of the last element that a direct operand can touch.
uint32_t extent(const Operand& o, int lanes, bool is_destination) {
  int last = 0;
  for (int i = 0; i < lanes; ++i) {
    const int offset = is_destination ? i * o.horizontal
                       : o.width == 1 ? i * o.vertical
                                      : i / o.width * o.vertical + i % o.width * o.horizontal;
    last = std::max(last, offset);
  }
  return o.byte + static_cast<uint32_t>((last + 1) * type_bytes(o.type));
}

// Operands stay inside of the registers that the machine has in this mode. Sends and dpas check
// their own.
void require_registers(const Isa& isa, const Inst& inst, int grf_count) {
  if (inst.op == Op::kSend || inst.op == Op::kSendc || inst.op == Op::kDpas) return;
  const auto require = [&](const Operand& o, bool is_destination, const char* name) {
    uint32_t end = 0;
    switch (o.file) {
      case File::kGrf:
        end = static_cast<uint32_t>(grf_count * isa.grf_bytes);
        break;
      case File::kAcc:
        end = static_cast<uint32_t>(isa.accumulators * isa.grf_bytes);
        break;
      case File::kFlag:
        end = static_cast<uint32_t>(isa.flag_registers * 4);
        break;
      case File::kAddress:
        end = 32;
        break;
      case File::kCr:
      case File::kSr:
        end = 16;
        break;
      default:
        return;
    }
    if (o.indirect) return;
    if (extent(o, inst.exec_size, is_destination) > end)
      fail("%s runs past the last register of its file", name);
  };
  // One address and one mask, whatever the width.
  if (inst.op == Op::kCall || inst.op == Op::kRet) {
    Inst pair = inst;
    pair.exec_size = 2;
    pair.op = Op::kMov;
    return require_registers(isa, pair, grf_count);
  }
  require(inst.dst, true, "dst");
  const char* names[] = {"src0", "src1", "src2"};
  for (size_t i = 0; i < 3; ++i) require(inst.src[i], false, names[i]);
  if (inst.flag >= 2 * isa.flag_registers)
    fail("f%d does not exist on %s", inst.flag / 2, isa.name);
}

// A packed immediate stands for a register of eight words: element k of it lies where word k of the
// destination does. For a destination of dwords lane i takes the element 2 i (compilers write
// 0x100:v for the pair 0, 1).
void spread_packed_immediates(Inst& inst) {
  const int words =
      std::max(1, type_bytes(inst.dst.type) * std::max<int>(inst.dst.horizontal, 1) / 2);
  for (Operand& o : inst.src) {
    if (o.form == ImmediateForm::kV || o.form == ImmediateForm::kUV)
      o.horizontal = static_cast<uint8_t>(words);
  }
}

}  // namespace

Program decode_program(const Isa& isa, std::span<const uint8_t> text, int grf_count) {
  Program p;
  p.isa = &isa;
  p.grf_count = grf_count;
  p.index_of.assign(text.size() / 8 + 1, -1);
  for (size_t ip = 0; ip + 8 <= text.size();) {
    Inst inst;
    std::string error;
    Execute execute = nullptr;
    if (decode(isa, text.subspan(ip), static_cast<uint32_t>(ip), inst, error)) {
      try {
        require_registers(isa, inst, grf_count);
        spread_packed_immediates(inst);
        execute = executor_of(isa, inst);
      } catch (const Fault& fault) {  // an error only if it is ever reached: padding follows the
                                      // last instruction
        error = fault.what();
      }
    }
    p.index_of[ip / 8] = static_cast<int32_t>(p.insts.size());
    p.insts.push_back(inst);
    p.execute.push_back(execute);
    p.errors.push_back(std::move(error));
    ip += inst.size;
  }
  for (size_t i = 0; i + 1 < p.insts.size(); ++i) {
    if (is_dummy_dpas(isa, p.insts[i], p.insts[i + 1])) p.execute[i] = dpas_nothing;
  }
  return p;
}

}  // namespace xesim

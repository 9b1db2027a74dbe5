// A send in words. Layout of the descriptors: LSC messages of ugm, ugml, slm, tgm; a few legacy
// ones.
#include "isa/text.hpp"

namespace xesim {
namespace {

uint32_t bits_of(uint32_t value, int high, int low) {
  return value >> low & ((2u << (high - low)) - 1);
}

std::string register_or_null(const Operand& operand) {
  return operand.exists() ? "r" + std::to_string(operand.number) : "null";
}

constexpr const char* kLscOps[] = {"load",
                                   "load_strided",
                                   "load_quad",
                                   "load_block2d",
                                   "store",
                                   "store_strided",
                                   "store_quad",
                                   "store_block2d",
                                   "atomic_iinc",
                                   "atomic_idec",
                                   "atomic_load",
                                   "atomic_store",
                                   "atomic_iadd",
                                   "atomic_isub",
                                   "atomic_smin",
                                   "atomic_smax",
                                   "atomic_umin",
                                   "atomic_umax",
                                   "atomic_icas",
                                   "atomic_fadd",
                                   "atomic_fsub",
                                   "atomic_fmin",
                                   "atomic_fmax",
                                   "atomic_fcas",
                                   "atomic_and",
                                   "atomic_or",
                                   "atomic_xor",
                                   "load_status",
                                   "store_uncompressed",
                                   "ccs_update",
                                   "read_state_info",
                                   "fence"};
constexpr const char* kDataSizes[] = {"d8",    "d16",    "d32",     "d64",
                                      "d8u32", "d16u32", "d16u32h", "d?"};
constexpr int kVectorLengths[] = {1, 2, 3, 4, 8, 16, 32, 64};
constexpr const char* kSurfaces[] = {"", ".bss", ".ss", ".bti"};

std::string block2d_text(const SendInfo& send) {
  const uint32_t desc = send.desc;
  std::string text = std::string(".") + kDataSizes[bits_of(desc, 11, 9)];
  if (bits_of(desc, 15, 15)) text += "t";
  if (bits_of(desc, 7, 7)) text += "v";
  return text + ".a64";
}

std::string lsc_text(const SendInfo& send) {
  const uint32_t desc = send.desc, op = bits_of(desc, 5, 0);
  if (op >= std::size(kLscOps)) return {};
  std::string text = kLscOps[op];
  text += "." + std::string(sfid_name(send.sfid));
  if (op == 0x1F) return text;
  if (op == 3 || op == 7) return text + block2d_text(send);
  text += std::string(".") + kDataSizes[bits_of(desc, 11, 9)];
  if (op == 2 || op == 6) {
    text += ".";
    for (int i = 0; i < 4; ++i) {
      if (bits_of(desc, 12 + i, 12 + i)) text += "xyzw"[i];
    }
  } else {
    const int length = kVectorLengths[bits_of(desc, 14, 12)];
    const bool transposed = bits_of(desc, 15, 15);
    if (length != 1 || transposed) text += format("x%d%s", length, transposed ? "t" : "");
  }
  const uint32_t address = bits_of(desc, 8, 7), surface = bits_of(desc, 30, 29);
  text += address == 0 ? ".a?" : format(".a%d", 8 << address);
  text += kSurfaces[surface];
  if (surface == 3 && !send.exdesc_in_a0) text += format("[%d]", bits_of(send.exdesc, 31, 24));
  return text;
}

}  // namespace

std::string message_text(const SendInfo& send) {
  if (send.desc_in_a0) return {};
  switch (send.sfid) {
    case Sfid::kUgm:
    case Sfid::kUgml:
    case Sfid::kSlm:
    case Sfid::kTgm:
      return lsc_text(send);
    case Sfid::kGateway:
      switch (bits_of(send.desc, 18, 0) & 0xFF) {
        case 0x04:
          return "barrier signal";
        case 0x10:
          return "end of thread";
        default:
          return {};
      }
    default:
      return {};
  }
}

std::string send_text(const Isa& isa, const Inst& inst) {
  const SendInfo& send = inst.send;
  std::string text = register_or_null(inst.dst) + " " + register_or_null(inst.src[0]) + " " +
                     register_or_null(inst.src[1]) + format(":%d", send.src1_length);
  if (send.exdesc_in_a0) {
    if (isa.xe2 && send.sfid == Sfid::kUgm && send.exdesc != 0)
      text += format(" 0x%x:a0.%d", send.exdesc, send.exdesc_byte / 4);
    else
      text += format(" a0.%d", send.exdesc_byte / 4);
  } else {
    text += format(" 0x%x", send.exdesc);
  }
  text += send.desc_in_a0 ? " a0.0" : format(" 0x%08x", send.desc);
  return text;
}

}  // namespace xesim

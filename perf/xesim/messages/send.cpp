// Descriptors of a send: which message it is, on what memory, with which payloads.
#include "messages/send.hpp"

#include "messages/message.hpp"

namespace xesim {
namespace {

uint32_t bits(uint32_t word, int high, int low) {
  return word >> low & (high - low == 31 ? ~0u : (1u << (high - low + 1)) - 1);
}

int32_t signed_bits(uint32_t word, int high, int low) {
  const int width = high - low + 1;
  return static_cast<int32_t>(bits(word, high, low) << (32 - width)) >> (32 - width);
}

uint32_t address_dword(const Thread& thread, uint32_t byte, const char* what) {
  const uint32_t index = byte / 2;
  if (index + 1 >= 32) fail("the %s is in a0.%u, which does not exist", what, index);
  if (thread.track && (thread.a0_defined >> index & 3) != 3) {
    fail("the %s in a0.%u:ud is undefined", what, index / 2);
  }
  return thread.a0[index] | static_cast<uint32_t>(thread.a0[index + 1]) << 16;
}

// Where the addresses of a load/store cache message point.
void decode_surface(Message& m) {
  enum Surface : uint32_t { kFlat, kBindless, kScratchSurface, kBindingTable };
  const SendInfo& send = m.inst.send;
  const Launch& launch = *m.thread.launch;
  const bool xe2 = launch.isa->xe2;
  const uint32_t surface = bits(m.desc, 30, 29);
  const bool block2d = m.op == LscOp::kLoadBlock2d || m.op == LscOp::kStoreBlock2d;

  if (xe2 && block2d) {
    m.offset_x = signed_bits(m.exdesc, 21, 12);
    m.offset_y = signed_bits(m.exdesc, 31, 22);
  } else if (xe2 && surface == kFlat) {
    m.offset = signed_bits(m.exdesc, 31, 12);
  } else if (xe2 && surface == kBindingTable) {
    m.offset = signed_bits(m.exdesc, 23, 12);
  } else if (xe2 && send.exdesc_in_a0) {
    // 17 bits, split over what is left of the instruction's own field.
    const uint32_t field = bits(send.exdesc, 31, 19) << 4 | bits(send.exdesc, 15, 12);
    m.offset = static_cast<int32_t>(field << 15) >> 15;
  }

  if (send.sfid == Sfid::kSlm) {
    if (surface != kFlat) unknown_message(m, "an SLM message on a surface");
    m.space = Space::kSlm;
    return;
  }
  switch (surface) {
    case kFlat:
      return;
    case kBindless:
      m.base = surface_base(launch, m.exdesc, "bindless surface handle");
      return;
    case kScratchSurface:
      m.space = Space::kScratch;
      return;
    case kBindingTable: {
      const uint32_t index = bits(m.exdesc, 31, 24);
      if (index == 0xff) {
        m.space = Space::kPayload;
      } else {
        m.base = surface_base(launch, index, "binding table index");
      }
      return;
    }
  }
}

void decode_data(Message& m) {
  struct Size {
    int memory, registers, shift;
  };
  static constexpr Size kSizes[] = {{1, 1, 0}, {2, 2, 0}, {4, 4, 0}, {8, 8, 0},
                                    {1, 4, 0}, {2, 4, 0}, {2, 4, 2}};
  static constexpr int kVectors[] = {1, 2, 3, 4, 8, 16, 32, 64};
  const uint32_t size = bits(m.desc, 11, 9);
  if (size >= std::size(kSizes)) unknown_message(m, "data size 7");
  m.memory_bytes = kSizes[size].memory;
  m.register_bytes = kSizes[size].registers;
  m.register_shift = kSizes[size].shift;

  if (m.op == LscOp::kLoadQuad || m.op == LscOp::kStoreQuad) {
    m.components = bits(m.desc, 15, 12);
    if (m.components == 0) unknown_message(m, "a quad message without components");
  } else {
    m.vector = kVectors[bits(m.desc, 14, 12)];
    m.transposed = bits(m.desc, 15, 15) != 0;
  }
  const uint32_t address = bits(m.desc, 8, 7);
  m.address_bytes = 1 << address;
}

void run_lsc(Message& m) {
  m.op = static_cast<LscOp>(bits(m.desc, 5, 0));
  if (m.op == LscOp::kFence) {
    // Memory is sequentially consistent here; the register only says that the fence is done.
    if (m.has_dst) m.thread.define(m.dst, static_cast<uint32_t>(m.isa().grf_bytes));
    return;
  }
  if (m.inst.send.sfid == Sfid::kTgm) unknown_message(m, "typed (image) messages");
  decode_surface(m);
  decode_data(m);
  if (m.op == LscOp::kLoadBlock2d || m.op == LscOp::kStoreBlock2d) {
    m.vnni = bits(m.desc, 7, 7) != 0;
    return run_block2d(m);
  }
  if (m.address_bytes == 1) unknown_message(m, "address size 0");
  switch (m.op) {
    case LscOp::kLoad:
    case LscOp::kStore:
      return m.transposed ? run_transposed(m) : run_lanes(m);
    case LscOp::kLoadQuad:
    case LscOp::kStoreQuad:
      return run_lanes(m);
    case LscOp::kLoadStrided:
    case LscOp::kStoreStrided:
      unknown_message(m, "strided loads and stores");
    default:
      break;
  }
  if (m.op < LscOp::kInc || m.op > LscOp::kXor) unknown_message(m, "opcode");
  if (m.transposed || m.vector != 1) unknown_message(m, "an atomic on vectors");
  run_atomic(m);
}

void decode_operands(Message& m) {
  const Inst& inst = m.inst;
  const auto byte_of = [&](const Operand& operand, const char* name) -> uint32_t {
    if (!operand.exists()) return 0;
    if (operand.file != File::kGrf) fail("%s of a send is not a general register", name);
    return operand.byte;
  };
  m.has_dst = inst.dst.exists();
  m.dst = byte_of(inst.dst, "the destination");
  m.addresses = byte_of(inst.src[0], "src0");
  m.data = byte_of(inst.src[1], "src1");
}

}  // namespace

void unknown_message(const Message& m, const char* what) {
  fail("unknown message: %s (sfid %d, descriptor 0x%08x, extended descriptor 0x%08x)", what,
       static_cast<int>(m.inst.send.sfid), m.desc, m.exdesc);
}

void require_registers(uint32_t byte, uint64_t count) {
  if (byte + count > kGrfFileBytes) {
    fail("a payload of %llu bytes from byte %u runs past the register file",
         static_cast<unsigned long long>(count), byte);
  }
}

uint64_t surface_base(const Launch& launch, uint64_t key, const char* kind) {
  for (const auto& [handle, base] : launch.surfaces) {
    if (handle == key) return base;
  }
  fail("%s 0x%llx is none of the kernel's arguments", kind, static_cast<unsigned long long>(key));
}

uint64_t Message::address_of(int lane) const {
  const uint32_t byte = addresses + static_cast<uint32_t>(lane * address_bytes);
  uint64_t address;
  switch (address_bytes) {
    case 2:
      address = thread.read<uint16_t>(byte);
      break;
    case 4:
      address = thread.read<uint32_t>(byte);
      break;
    default:
      address = thread.read<uint64_t>(byte);
      break;
  }
  return address + static_cast<uint64_t>(int64_t{offset});
}

void Message::require_addresses(bool defined) const {
  if (!inst.src[0].exists()) unknown_message(*this, "a message without addresses");
  if (lanes == 0) return;
  require_registers(addresses, static_cast<uint64_t>((32 - __builtin_clz(lanes)) * address_bytes));
  if (!thread.track || !defined) return;
  const auto size = static_cast<uint32_t>(address_bytes);
  if (lanes == all_lanes()) {
    return thread.require_defined(addresses, inst.exec_size * size, "src0 (address)");
  }
  for (uint32_t left = lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<uint32_t>(__builtin_ctz(left));
    thread.require_defined(addresses + lane * size, size, "src0 (address)");
  }
}

void Message::require_data(uint64_t bytes) const {
  if (!inst.src[1].exists()) unknown_message(*this, "a store without data");
  require_registers(data, bytes);
}

void execute_send(Thread& thread, const Inst& inst) {
  const SendInfo& send = inst.send;
  Message m{.thread = thread, .inst = inst};
  m.desc = send.desc_in_a0 ? address_dword(thread, 0, "message descriptor") : send.desc;
  m.exdesc = send.exdesc_in_a0
                 ? address_dword(thread, send.exdesc_byte, "extended message descriptor")
                 : send.exdesc;
  m.lanes = thread.active_lanes(inst);
  decode_operands(m);
  if (send.end_of_thread && send.sfid != Sfid::kGateway) {
    unknown_message(m, "end of thread outside of the gateway");
  }
  switch (send.sfid) {
    case Sfid::kUgm:
    case Sfid::kUgml:
    case Sfid::kSlm:
    case Sfid::kTgm:
      return run_lsc(m);
    case Sfid::kDc0:
      return run_data_cache0(m);
    case Sfid::kDc1:
      return run_data_cache1(m);
    case Sfid::kGateway:
      return run_gateway(m);
    default:
      unknown_message(m, "shared function");
  }
}

}  // namespace xesim

// Messages of the older data cache units (dc0, dc1) that compilers still emit for Xe-HPG and
// Xe-HPC. The message type is in bits 18:14 of the descriptor; most do what a load/store cache
// message does.
#include "messages/memory_access.hpp"

namespace xesim {
namespace {

uint32_t field(uint32_t desc, int high, int low) {
  return desc >> low & ((1u << (high - low + 1)) - 1);
}

// What the binding table index of a 32-bit message stands for.
void decode_index(Message& m) {
  const uint32_t index = field(m.desc, 7, 0);
  m.address_bytes = 4;
  if (index == 0xfe) {
    m.space = Space::kSlm;
  } else if (index == 0xff || index == 0xfd) {
    m.space = Space::kPayload;  // "stateless": relative to the indirect data's base
  } else {
    m.base = surface_base(*m.thread.launch, index, "binding table index");
  }
}

void set_elements(Message& m, int memory_bytes, int register_bytes, int vector) {
  m.memory_bytes = memory_bytes;
  m.register_bytes = register_bytes;
  m.vector = vector;
}

// One address in the header, `bytes` consecutive bytes in registers from lane 0's on. Blocks are
// moved whatever the lanes, unless none executes.
void run_block(Message& m, bool write, uint64_t address, uint32_t bytes) {
  if (m.lanes == 0) return;
  MemoryAccess memory(m, Traffic::kBlock, m.access(write));
  memory.run_block(address, bytes);
}

uint32_t header_dword(const Message& m, uint32_t index) {
  if (!m.inst.src[0].exists()) unknown_message(m, "a message without a header");
  m.thread.require_defined(m.addresses + 4 * index, 4, "src0 (address)");
  return m.thread.read<uint32_t>(m.addresses + 4 * index);
}

// Blocks of owords (16 bytes): codes 0 and 1 are one, to or from the low or high half of 32 bytes.
uint32_t oword_bytes(const Message& m) {
  const uint32_t code = field(m.desc, 10, 8);
  if (code > 5) unknown_message(m, "oword block size");
  return code < 2 ? 16 : 16u << (code - 1);
}

void run_oword_block(Message& m, bool write, uint64_t address) {
  const uint32_t bytes = oword_bytes(m);
  if (field(m.desc, 10, 8) == 1) (write ? m.data : m.dst) += 16;
  run_block(m, write, address, bytes);
}

LscOp integer_atomic(const Message& m) {
  switch (field(m.desc, 11, 8)) {
    case 0x1:
      return LscOp::kAnd;
    case 0x2:
      return LscOp::kOr;
    case 0x3:
      return LscOp::kXor;
    case 0x4:
      return LscOp::kAtomicStore;
    case 0x5:
      return LscOp::kInc;
    case 0x6:
      return LscOp::kDec;
    case 0x7:
      return LscOp::kAdd;
    case 0x8:
      return LscOp::kSub;
    case 0xa:
      return LscOp::kSmax;
    case 0xb:
      return LscOp::kSmin;
    case 0xc:
      return LscOp::kUmax;
    case 0xd:
      return LscOp::kUmin;
    case 0xe:
      return LscOp::kCas;
    default:
      unknown_message(m, "integer atomic operation");
  }
}

LscOp float_atomic(const Message& m) {
  switch (field(m.desc, 11, 8)) {
    case 1:
      return LscOp::kFmax;
    case 2:
      return LscOp::kFmin;
    case 3:
      return LscOp::kFcas;
    case 4:
      return LscOp::kFadd;
    case 5:
      return LscOp::kFsub;
    default:
      unknown_message(m, "float atomic operation");
  }
}

void run_legacy_atomic(Message& m, LscOp op, int bytes) {
  set_elements(m, bytes, bytes, 1);
  m.op = op;
  if (field(m.desc, 13, 13) == 0) m.has_dst = false;  // returns nothing
  run_atomic(m);
}

// Elements of an a64 scattered message: [9:8] 0 bytes, 1 dwords, 2 qwords; [11:10] how many.
void decode_scattered(Message& m) {
  const int count = 1 << field(m.desc, 11, 10);
  switch (field(m.desc, 9, 8)) {
    case 0:
      if (count > 4) unknown_message(m, "scattered element count");
      return set_elements(m, count, 4, 1);
    case 1:
      return set_elements(m, 4, 4, count);
    case 2:
      return set_elements(m, 8, 8, count);
    default:
      unknown_message(m, "scattered element size");
  }
}

// Up to four dwords per lane; [11:8] names those that are left out.
void run_untyped(Message& m, bool write) {
  set_elements(m, 4, 4, 1);
  m.components = ~field(m.desc, 11, 8) & 0xf;
  if (m.components == 0) unknown_message(m, "untyped message without channels");
  m.op = write ? LscOp::kStoreQuad : LscOp::kLoadQuad;
  run_lanes(m);
}

}  // namespace

void run_data_cache0(Message& m) {
  if (field(m.desc, 18, 18) != 0) {  // scratch block, in units of 32 bytes
    m.space = Space::kScratch;
    return run_block(m, field(m.desc, 17, 17) != 0, field(m.desc, 11, 0) * 32,
                     32u << field(m.desc, 13, 12));
  }
  const uint32_t type = field(m.desc, 18, 14);
  switch (type) {
    case 0x0:
    case 0x1:
    case 0x8:
      if (m.lanes == 0) return;
      decode_index(m);
      // The unaligned form (1) counts bytes, the others owords.
      return run_oword_block(m, type == 0x8, uint64_t{header_dword(m, 2)} * (type == 0x1 ? 1 : 16));
    case 0x3:
    case 0xb:
      decode_index(m);
      // Compilers use the stateless form for the thread's private memory only.
      if (m.space == Space::kPayload) m.space = Space::kScratch;
      set_elements(m, 4, 4, 1);
      m.op = type == 0xb ? LscOp::kStore : LscOp::kLoad;
      return run_lanes(m);
    case 0x4:
    case 0xc: {
      const uint32_t code = field(m.desc, 11, 10);
      if (code > 2) unknown_message(m, "byte scattered size");
      decode_index(m);
      set_elements(m, 1 << code, 4, 1);
      m.op = type == 0xc ? LscOp::kStore : LscOp::kLoad;
      return run_lanes(m);
    }
    case 0x7:  // fence
      if (m.has_dst) m.thread.define(m.dst, static_cast<uint32_t>(m.isa().grf_bytes));
      return;
    default:
      unknown_message(m, "dc0 message type");
  }
}

void run_data_cache1(Message& m) {
  const uint32_t type = field(m.desc, 18, 14);
  switch (type) {
    case 0x10:
    case 0x1a:
      decode_scattered(m);
      m.op = type == 0x1a ? LscOp::kStore : LscOp::kLoad;
      return run_lanes(m);
    case 0x01:
    case 0x09:
      decode_index(m);
      return run_untyped(m, type == 0x09);
    case 0x11:
    case 0x19:
      return run_untyped(m, type == 0x19);
    case 0x12:
      return run_legacy_atomic(m, integer_atomic(m), field(m.desc, 12, 12) != 0 ? 8 : 4);
    case 0x02:
      decode_index(m);
      return run_legacy_atomic(m, integer_atomic(m), 4);
    case 0x1d:
      return run_legacy_atomic(m, float_atomic(m), 4);
    case 0x1b:
      decode_index(m);
      return run_legacy_atomic(m, float_atomic(m), 4);
    case 0x14:
    case 0x15: {
      if (m.lanes == 0) return;
      if (field(m.desc, 12, 11) > 1) unknown_message(m, "64-bit block of another unit than owords");
      const uint64_t address = header_dword(m, 0) | uint64_t{header_dword(m, 1)} << 32;
      return run_oword_block(m, type == 0x15, address);
    }
    default:
      unknown_message(m, "dc1 message type");
  }
}

}  // namespace xesim

// Loads and stores with an address per lane, and of consecutive elements from one address.
#include <array>
#include <span>
#include <type_traits>

#include "messages/memory_access.hpp"

namespace xesim {
namespace {

uint32_t unsigned_of(int value) { return static_cast<uint32_t>(value); }

bool is_store(LscOp op) { return op == LscOp::kStore || op == LscOp::kStoreQuad; }

// kBytes of memory from or to an element of kRegister bytes; the rest of the element reads as zero.
template <int kBytes, int kRegister>
void load_element(uint8_t* element, const uint8_t* memory, int shift) {
  if constexpr (kBytes == kRegister) {
    std::memcpy(element, memory, kBytes);
  } else {
    std::conditional_t<kBytes == 1, uint8_t, uint16_t> narrow;
    std::memcpy(&narrow, memory, kBytes);
    const uint32_t wide = static_cast<uint32_t>(narrow) << (8 * shift);
    std::memcpy(element, &wide, kRegister);
  }
}

// Marks the loaded elements of one component. Before Xe2 the rest of a widened element is
// undefined.
void define_component(const Message& m, uint32_t first) {
  Thread& thread = m.thread;
  const bool whole = m.memory_bytes == m.register_bytes || m.isa().xe2;
  const auto size = unsigned_of(m.register_bytes);
  if (whole && m.lanes == m.all_lanes()) return thread.define(first, m.inst.exec_size * size);
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const uint32_t element = first + unsigned_of(__builtin_ctz(left)) * size;
    thread.define(element, size, whole);
    if (!whole) {
      thread.define(element + unsigned_of(m.register_shift), unsigned_of(m.memory_bytes));
    }
  }
}

void require_component(const Message& m, uint32_t first) {
  const auto size = unsigned_of(m.register_bytes);
  if (m.memory_bytes == m.register_bytes && m.lanes == m.all_lanes()) {
    return m.thread.require_defined(first, m.inst.exec_size * size, "src1 (data)");
  }
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    m.thread.require_defined(
        first + unsigned_of(__builtin_ctz(left)) * size + unsigned_of(m.register_shift),
        unsigned_of(m.memory_bytes), "src1 (data)");
  }
}

// The addresses of the lanes, read before any register is written: a load may overwrite its own
// addresses.
struct Addresses {
  uint64_t of[32];
};

Addresses read_addresses(const Message& m) {
  Addresses addresses;
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    addresses.of[lane] = m.address_of(lane);
  }
  return addresses;
}

// All lanes execute and their elements follow each other in memory, as in most code with a lane per
// element.
bool is_contiguous(const Message& m, const Addresses& addresses, int bytes) {
  if (m.lanes != m.all_lanes() || m.inst.exec_size < 4) return false;
  for (int lane = 1; lane < m.inst.exec_size; ++lane) {
    if (addresses.of[lane] != addresses.of[0] + unsigned_of(lane * bytes)) return false;
  }
  return true;
}

// `count` consecutive elements per lane, `skip` bytes after the lane's address; component i lies in
// registers from `first` + i strides on. Each lane is a piece, or all of them are one.
struct Run {
  int skip, count;
  uint32_t first;
  bool contiguous;
};

void reach(const Message& m, const Addresses& addresses, MemoryAccess& memory, const Run& run) {
  const bool store = is_store(m.op);
  const auto value = [&](int lane) {
    const uint32_t element = run.first + unsigned_of(lane * m.register_bytes + m.register_shift);
    return store && run.count == 1 ? m.thread.grf + element : nullptr;
  };
  if (run.contiguous) {
    memory.reach(addresses.of[0] + unsigned_of(run.skip),
                 unsigned_of(m.inst.exec_size * m.memory_bytes), value(0));
    return;
  }
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    memory.lane = lane;
    memory.reach(addresses.of[lane] + unsigned_of(run.skip),
                 unsigned_of(run.count * m.memory_bytes), value(lane));
  }
}

// From the pieces to registers; returns the piece behind the run's.
template <int kBytes, int kRegister>
const Piece* load(const Message& m, MemoryAccess& memory, const Run& run, const Piece* piece) {
  if (run.contiguous) {
    memory.load(*piece, run.first);
    return piece + 1;
  }
  Thread& thread = m.thread;
  const uint32_t stride = m.component_stride();
  const bool carry = memory.carries_defined();
  for (int i = 0; i < run.count && thread.track; ++i)
    define_component(m, run.first + unsigned_of(i) * stride);
  for (uint32_t left = m.lanes; left != 0; left &= left - 1, ++piece) {
    const uint8_t* from = piece->memory;
    uint32_t element = run.first + unsigned_of(__builtin_ctz(left) * kRegister);
    for (int i = 0; i < run.count; ++i, element += stride, from += kBytes) {
      load_element<kBytes, kRegister>(thread.grf + element, from, m.register_shift);
      if (carry) memory.carry_to_registers(from, kBytes, element + unsigned_of(m.register_shift));
    }
  }
  return piece;
}

template <int kBytes, int kRegister>
const Piece* store(const Message& m, MemoryAccess& memory, const Run& run, const Piece* piece) {
  if (run.contiguous) {
    memory.store(*piece, run.first);
    return piece + 1;
  }
  Thread& thread = m.thread;
  const uint32_t stride = m.component_stride();
  const bool carry = memory.carries_defined();
  for (uint32_t left = m.lanes; left != 0; left &= left - 1, ++piece) {
    uint8_t* to = piece->memory;
    uint32_t element = run.first + unsigned_of(__builtin_ctz(left) * kRegister + m.register_shift);
    for (int i = 0; i < run.count; ++i, element += stride, to += kBytes) {
      std::memcpy(to, thread.grf + element, kBytes);
      if (carry) memory.carry_from_registers(to, kBytes, element);
    }
  }
  return piece;
}

template <int kBytes, int kRegister>
void run_elements(const Message& m, const Addresses& addresses, MemoryAccess& memory) {
  const bool stores = is_store(m.op);
  const uint32_t registers = stores ? m.data : m.dst, stride = m.component_stride();
  const bool one_block = kBytes == kRegister && is_contiguous(m, addresses, kBytes);
  // Quads: enabled components follow each other in registers; each run of neighbours is one access.
  std::array<Run, 2> runs;
  size_t count = 0;
  const auto add = [&](int component, int elements, int position) {
    const uint64_t end = uint64_t{stride} * unsigned_of(position + elements);
    stores ? m.require_data(end) : require_registers(m.dst, end);
    runs[count++] = {component * kBytes, elements, registers + unsigned_of(position) * stride,
                     one_block && elements == 1};
  };
  if (m.components == 0) {
    add(0, m.vector, 0);
  } else {
    int position = 0;
    for (int component = 0; component < 4;) {
      int elements = 0;
      while (m.components >> (component + elements) & 1) ++elements;
      if (elements != 0) add(component, elements, position);
      position += elements;
      component += elements + 1;
    }
  }
  const auto used = std::span(runs).first(count);
  for (const Run& run : used) {
    for (int i = 0; i < run.count && stores && m.thread.track && !memory.carries_defined(); ++i) {
      require_component(m, run.first + unsigned_of(i) * stride);
    }
    reach(m, addresses, memory, run);
  }
  const Piece* piece = memory.pieces();
  if (stores) memory.tell();
  for (const Run& run : used) {
    piece = (stores ? store<kBytes, kRegister> : load<kBytes, kRegister>)(m, memory, run, piece);
  }
  if (!stores) memory.tell();
}

void require_alignment(const Message& m, const Addresses& addresses) {
  const auto mask = static_cast<uint64_t>(m.memory_bytes - 1);
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    const uint64_t address = m.base + addresses.of[lane];
    if ((address & mask) != 0) {
      fail("address 0x%llx of lane %d is no multiple of the %d-byte elements of a vector",
           static_cast<unsigned long long>(address), lane, m.memory_bytes);
    }
  }
}

}  // namespace

void run_lanes(const Message& m) {
  if (m.lanes == 0) return;
  const int elements = m.components != 0 ? __builtin_popcount(m.components) : m.vector;
  const Access access = m.access(is_store(m.op));
  m.require_addresses(access != Access::kPrefetch);
  const Addresses addresses = read_addresses(m);
  MemoryAccess memory(m, Traffic::kGather, access);
  if (access == Access::kPrefetch) {
    for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
      memory.prefetch(addresses.of[__builtin_ctz(left)], unsigned_of(elements * m.memory_bytes));
    }
    return memory.tell();
  }
  if (elements > 1) require_alignment(m, addresses);
  switch (m.memory_bytes * 16 + m.register_bytes) {
    case 0x11:
      return run_elements<1, 1>(m, addresses, memory);
    case 0x14:
      return run_elements<1, 4>(m, addresses, memory);
    case 0x22:
      return run_elements<2, 2>(m, addresses, memory);
    case 0x24:
      return run_elements<2, 4>(m, addresses, memory);
    case 0x44:
      return run_elements<4, 4>(m, addresses, memory);
    case 0x88:
      return run_elements<8, 8>(m, addresses, memory);
    default:
      unknown_message(m, "data size");
  }
}

void run_transposed(const Message& m_) {
  Message m = m_;
  m.lanes &= 1;  // one address, that of lane 0
  if (m.lanes == 0) return;
  if (m.memory_bytes != m.register_bytes) unknown_message(m, "a block of widened elements");
  const Access access = m.access(is_store(m.op));
  m.require_addresses(access != Access::kPrefetch);
  const Addresses addresses = read_addresses(m);
  if (access != Access::kPrefetch) require_alignment(m, addresses);
  MemoryAccess memory(m, Traffic::kBlock, access);
  memory.run_block(addresses.of[0], unsigned_of(m.vector * m.memory_bytes));
}

}  // namespace xesim

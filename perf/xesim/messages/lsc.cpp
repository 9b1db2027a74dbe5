// Loads and stores with an address per lane, and of consecutive elements from one address.
#include <type_traits>

#include "messages/message.hpp"

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
// registers from `first` + i strides on.
template <int kBytes, int kRegister>
void load_run(const Message& m, const Addresses& addresses, MemoryAccess& memory, int skip,
              int count, uint32_t first) {
  if (kBytes == kRegister && count == 1 && is_contiguous(m, addresses, kBytes)) {
    return memory.load(addresses.of[0] + unsigned_of(skip), unsigned_of(m.inst.exec_size * kBytes),
                       first);
  }
  Thread& thread = m.thread;
  const uint32_t stride = m.component_stride();
  const bool carry = memory.carries_defined();
  for (int i = 0; i < count && thread.track; ++i)
    define_component(m, first + unsigned_of(i) * stride);
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    memory.lane = lane;
    const uint8_t* from = memory.reach(addresses.of[lane] + unsigned_of(skip),
                                       unsigned_of(count * kBytes), Access::kRead);
    uint32_t element = first + unsigned_of(lane * kRegister);
    for (int i = 0; i < count; ++i, element += stride, from += kBytes) {
      load_element<kBytes, kRegister>(thread.grf + element, from, m.register_shift);
      if (carry) memory.carry_to_registers(from, kBytes, element + unsigned_of(m.register_shift));
    }
  }
}

template <int kBytes, int kRegister>
void store_run(const Message& m, const Addresses& addresses, MemoryAccess& memory, int skip,
               int count, uint32_t first) {
  if (kBytes == kRegister && count == 1 && is_contiguous(m, addresses, kBytes)) {
    return memory.store(addresses.of[0] + unsigned_of(skip), unsigned_of(m.inst.exec_size * kBytes),
                        first);
  }
  Thread& thread = m.thread;
  const uint32_t stride = m.component_stride();
  const bool carry = memory.carries_defined();
  if (thread.track && !carry) {
    for (int i = 0; i < count; ++i) require_component(m, first + unsigned_of(i) * stride);
  }
  for (uint32_t left = m.lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    memory.lane = lane;
    uint32_t element = first + unsigned_of(lane * kRegister + m.register_shift);
    uint8_t* to = memory.reach(addresses.of[lane] + unsigned_of(skip), unsigned_of(count * kBytes),
                               Access::kWrite, count == 1 ? thread.grf + element : nullptr);
    for (int i = 0; i < count; ++i, element += stride, to += kBytes) {
      std::memcpy(to, thread.grf + element, kBytes);
      if (carry) memory.carry_from_registers(to, kBytes, element);
    }
  }
}

template <int kBytes, int kRegister>
void run_elements(const Message& m, const Addresses& addresses, MemoryAccess& memory) {
  const bool store = is_store(m.op);
  const uint32_t registers = store ? m.data : m.dst, stride = m.component_stride();
  const auto run = [&](int component, int count, int position) {
    const uint32_t first = registers + unsigned_of(position) * stride;
    const uint64_t position_end = uint64_t{stride} * unsigned_of(position + count);
    store ? m.require_data(position_end) : require_registers(m.dst, position_end);
    (store ? store_run<kBytes, kRegister>
           : load_run<kBytes, kRegister>)(m, addresses, memory, component * kBytes, count, first);
  };
  if (m.components == 0) return run(0, m.vector, 0);
  // Quads: enabled components follow each other in registers; each run of neighbours is one access.
  int position = 0;
  for (int component = 0; component < 4;) {
    int count = 0;
    while (m.components >> (component + count) & 1) ++count;
    if (count != 0) run(component, count, position);
    position += count;
    component += count + 1;
  }
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
  if (!is_store(m.op) && !m.has_dst) {  // a prefetch: any address will do
    m.thread.worker->counts.prefetch_bytes +=
        static_cast<uint64_t>(__builtin_popcount(m.lanes) * elements * m.memory_bytes);
    return;
  }
  m.require_addresses();
  const Addresses addresses = read_addresses(m);
  if (elements > 1) require_alignment(m, addresses);
  MemoryAccess memory(m.thread, m.space, m.base, Traffic::kGather);
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
  const auto bytes = unsigned_of(m.vector * m.memory_bytes);
  const bool store = is_store(m.op);
  if (!store && !m.has_dst) {
    m.thread.worker->counts.prefetch_bytes += bytes;
    return;
  }
  m.require_addresses();
  const Addresses addresses = read_addresses(m);
  require_alignment(m, addresses);
  store ? m.require_data(bytes) : require_registers(m.dst, bytes);
  MemoryAccess memory(m.thread, m.space, m.base, Traffic::kBlock);
  if (store) {
    memory.store(addresses.of[0], bytes, m.data);
  } else {
    memory.load(addresses.of[0], bytes, m.dst);
  }
}

}  // namespace xesim

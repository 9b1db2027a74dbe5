// FNV-1a with 64 bits.
#pragma once

#include <cstdint>
#include <ranges>

namespace xesim {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;

template <std::ranges::range Bytes>
uint64_t hash_of(const Bytes& bytes, uint64_t start = kHashStart) {
  uint64_t hash = start;
  for (const auto byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

}  // namespace xesim

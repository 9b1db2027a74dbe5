// Where the arrays of a call lie, and the memory that its kernels share there.
#pragma once

#include "host/arrays/array.hpp"
#include "host/arrays/checks.hpp"
#include "host/device/launch.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

inline Place place_of(const Array& a) { return place_on(a.queue, a.stream_ordered); }

// A call that waits for its kernels cannot become part of a graph.
void refuse_to_wait_while_recording(const Place& place, const Array& q, const char* name,
                                    const Checker& check);

// Zeroes an array that is packed; without data, nothing.
inline void clear(Launcher& launch, const Array& a) {
  if (a.data) launch.clear(a.data, bytes_of(a));
}

// Memory, aligned to 64 bytes, that the kernels of a call share; a call has one of these at most.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch();
  // `like`: an array of the call.
  void allocate(const Place& place, const Array& like, int64_t floats);

  float* data = nullptr;

 private:
  Array array_;  // whose memory is freed in the order of its stream
};

// Parts of such memory, each from a line of a cache on.
class Plan {
 public:
  // Where it begins.
  int64_t add(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += whole(bytes, kLineBytes);
    return at;
  }
  int64_t floats() const { return bytes_ / 4 + kLineFloats; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace xeflash

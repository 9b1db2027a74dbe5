// Finds where the arrays of a call lie, and makes the memory that its kernels share there.
#pragma once

#include "host/arrays/array.hpp"
#include "host/arrays/checks.hpp"
#include "host/device/launch.hpp"
#include "host/device/sizes.hpp"

namespace xeflash {

inline Place place_of(const Array& a) { return place_on(a.queue, a.stream_ordered); }

// Returns whether the host may look at an array's values: in host memory, and with XEFLASH_CHECK=1
// also on a device, which is then waited for, unless its queue is recording a graph.
bool host_may_see(const Array& array);

// Copies the values of a vector or a matrix of contiguous rows for the host, if it may look at them
// and they lie on a device.
void let_host_see(Array& array);

// Returns the array of the host that has the values, or null: then they are trusted, because
// reading them would wait for the device's queue.
inline const Array* seen_by_host(const Array& a) { return a.queue ? a.seen.get() : &a; }
inline const int32_t* ints_of_host(const Array& a) {
  const Array* seen = seen_by_host(a);
  return seen ? reinterpret_cast<const int32_t*>(seen->data) : nullptr;
}

// A call that waits for its kernels cannot become part of a graph.
void refuse_to_wait_while_recording(const Place& place, const Array& q, const char* name,
                                    const Checker& check);

// Zeroes a packed array; does nothing if it has no data.
inline void clear(Launcher& launch, const Array& a) {
  if (a.data) launch.clear(a.data, bytes_of(a));
}

// The memory that the kernels of a call share, aligned to 64 bytes. A call has at most one.
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

// A plan of the parts of such memory. Each part begins at a cache line.
class Plan {
 public:
  // Returns the byte at which the new part begins.
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

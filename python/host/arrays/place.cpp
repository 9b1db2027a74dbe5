#include "host/arrays/place.hpp"

#include <algorithm>
#include <new>
#include <optional>

namespace xeflash {
namespace {

// The scratch memory of a thread, for arrays whose maker cannot free memory in the order of its
// stream. There is one buffer per thread, for the queue that it used last: launches of a thread on
// an in-order queue follow each other, and a thread waits for each launch on another queue.
class ThreadBuffer {
 public:
  float* get(const sycl::queue& queue, size_t floats) {
    if (!queue_ || *queue_ != queue || size_ < floats) {
      release();
      data_ = sycl::aligned_alloc_device<float>(kLineBytes, floats, queue);
      if (!data_) throw std::bad_alloc();
      queue_ = queue;
      size_ = floats;
    }
    return data_;
  }
  // Frees a large buffer once the last kernel of a call was launched, or has ended where calls
  // wait.
  void give_back() {
    if (size_ > kKept) release();
  }
  ~ThreadBuffer() { release(); }

 private:
  void release() {
    if (!data_) return;
    queue_->wait();
    sycl::free(data_, *queue_);
    data_ = nullptr;
    size_ = 0;
    queue_.reset();
  }

  static constexpr size_t kKept = size_t{1} << 20;  // floats: 4 MiB a thread
  std::optional<sycl::queue> queue_;
  float* data_ = nullptr;
  size_t size_ = 0;
};
thread_local ThreadBuffer thread_buffer;

}  // namespace

void refuse_to_wait_while_recording(const Place& place, const Array& q, const char* name,
                                    const Checker& check) {
  if (place.on_host || q.stream_ordered || !is_recording(place.queue)) return;
  check.refuse<NotImplemented>(
      name, std::string("must be a torch tensor on a queue that records a graph, got ") +
                Py_TYPE(q.object.ptr())->tp_name + ", whose calls wait for their result");
}

void Scratch::allocate(const Place& place, const Array& like, int64_t floats) {
  if (Rehearsal* rehearsal = Rehearsal::current()) {
    rehearsal->scratch_bytes = std::max<int64_t>(rehearsal->scratch_bytes, 4 * floats);
    return;
  }
  if (!place.on_host && like.stream_ordered) {
    array_ = new_array(like, DType::kF32, {floats});
    data = reinterpret_cast<float*>(array_.data);
  } else {
    data = thread_buffer.get(place.queue, static_cast<size_t>(floats));
  }
}

Scratch::~Scratch() {
  if (data && !array_.data) thread_buffer.give_back();
}

}  // namespace xeflash

#include "host/arrays/place.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

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

bool checks_devices() {
  const char* given = std::getenv("XEFLASH_CHECK");
  const std::string_view choice = given ? given : "";
  if (!choice.empty() && choice != "0" && choice != "1")
    throw py::value_error("xeflash: XEFLASH_CHECK must be 0 or 1, got " + std::string(choice));
  return choice == "1";
}

}  // namespace

bool host_may_see(const Array& a) {
  if (!a.queue) return true;
  if (!checks_devices() || Rehearsal::current()) return false;
  const auto& queue = *static_cast<sycl::queue*>(a.queue);
  if (is_recording(queue)) return false;
  return a.is_empty() ||  // a Placeholder has no memory
         sycl::get_pointer_type(a.data, queue.get_context()) != sycl::usm::alloc::unknown;
}

void let_host_see(Array& a) {
  if (!a.queue || !host_may_see(a)) return;
  struct Copy {
    Array array;
    std::vector<std::byte> values;
  };
  const auto copy = std::make_shared<Copy>();
  const int64_t rows = a.ndim == 2 ? a.shape[0] : 1, columns = a.shape[a.ndim - 1];
  const int64_t bytes = columns * size_of(a.dtype);
  copy->values.resize(rows * bytes);
  Array& to = copy->array;
  to.ndim = a.ndim;
  to.shape = a.shape;
  to.strides = {a.ndim == 2 ? columns : 1, 1};
  to.data = copy->values.data();
  a.seen = std::shared_ptr<const Array>(copy, &to);
  if (copy->values.empty()) return;
  const Place place = place_of(a);
  py::gil_scoped_release nogil;
  if (!place.in_order) place.queue.wait_and_throw();
  for (int64_t row = 0; row < rows; ++row)
    place.queue.memcpy(to.data + row * bytes, a.data + row * a.strides[0] * size_of(a.dtype),
                       bytes);
  place.queue.wait_and_throw();
}

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

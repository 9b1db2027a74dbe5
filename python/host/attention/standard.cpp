#include <algorithm>
#include <cstddef>
#include <new>
#include <string>

#include "host/arrays/checks.hpp"
#include "host/arrays/place.hpp"
#include "host/attention/desc.hpp"
#include "host/attention/functions.hpp"
#include "host/attention/params.hpp"
#include "host/attention/problem.hpp"
#include "host/attention/schedule.hpp"

namespace xeflash {
namespace {

// Refuses calls whose S, the largest array, is too large.
void refuse_without_room(const Problem& p, const sycl::queue& queue) {
  const double bytes = 1.0 * p.batch * p.heads_q * p.sq * p.sk * sizeof(float);
  const auto most = queue.get_device().get_info<sycl::info::device::max_mem_alloc_size>();
  if (bytes <= static_cast<double>(most)) return;
  const std::string text =
      "standard_attention: the scores must fit in one allocation of the device (" +
      std::to_string(most) + " bytes), got " + std::to_string(bytes) + " bytes";
  PyErr_SetString(PyExc_MemoryError, text.c_str());
  throw py::error_already_set();
}

// Returns a (batch, head, row, key) array of the device for one call. Its rows have room for whole
// blocks of keys, and begin at multiples of 64 bytes, as 2D block messages require.
class ScoreBuffer {
 public:
  ScoreBuffer(const sycl::queue& queue, const Problem& p, int64_t block_k, int64_t element_size)
      : queue_(queue),
        row_(whole(whole(p.sk, block_k), kMessageInputs)),
        rows_(p.sq),
        heads_(p.heads_q) {
    const int64_t bytes = p.batch * heads_ * rows_ * row_ * element_size;
    data_ = sycl::aligned_alloc_device<std::byte>(kLineBytes, std::max(kLineBytes, bytes), queue);
    if (!data_) throw std::bad_alloc();
  }
  ~ScoreBuffer() {
    queue_.wait();
    sycl::free(data_, queue_);
  }
  ScoreBuffer(const ScoreBuffer&) = delete;

  TensorArg arg() const { return {data_, heads_ * rows_ * row_, row_, rows_ * row_}; }

 private:
  sycl::queue queue_;
  int64_t row_, rows_, heads_;
  void* data_ = nullptr;
};

}  // namespace

py::object standard_attention(const FwdRequest& r) {
  const Checker check = checker_of(r);
  const Problem p = read_problem(r);
  if (!r.residual.is_none())
    check.refuse("residual", "must be None, as no backward pass follows, got one");
  if (p.documents.data) check.refuse<NotImplemented>("document_ids", "must be None, got an array");
  if (p.blocks.data) check.refuse<NotImplemented>("blocks", "must be None, got an array");
  if (p.has_blocks()) check.refuse<NotImplemented>("mask_mod", "must be None, got one");
  Place place = place_of(p.q);
  place.waits = true;
  if (!place.on_host && is_recording(place.queue)) {
    check.refuse<NotImplemented>(
        "q",
        "must be on a queue that records no graph, as the call waits for its result, got one that "
        "does");
  }
  refuse_without_room(p, place.queue);
  const Array out = result_array(p, r);
  if (!p.has_queries()) return out.object;

  Desc desc = describe(Algorithm::standard_attention, p);
  desc.rows = rows_for(desc, p, schedule_of(place.device));
  desc.access =
      access_for(p, {{&out, p.dv}}, {}, r.layout, QueryRows::kOfHead, place.device.facts.arch);
  constexpr int64_t kMostKeys =
      (1 << 22) - 128;  // of a row of S in 2D block messages, see fits_block2d
  if (desc.access == Access::kBlock2d && p.sk > kMostKeys) desc.access = Access::kDwords;
  const Kernels& kernels = find_kernels(desc, place);
  const uint64_t groups = groups_for(desc, kernels, p.sq, p.batch * p.heads_q);
  const auto parts = static_cast<uint64_t>(kernels.groups_of_rows);
  const uint64_t shares[] = {1, 1, parts};  // of a block's columns

  const ScoreBuffer scores(place.queue, p, kernels.block_k, sizeof(float));
  const ScoreBuffer probabilities(place.queue, p, kernels.block_k, size_of(p.q.dtype));
  const StandardParams params{params_of(p, r, {out, {}, {}}, place), scores.arg(),
                              probabilities.arg()};
  submit(place, [&](Launcher& launch) {
    for (size_t i = 0; i < kernels.entries.size(); ++i) {
      launch(*kernels.entries[i], params, groups / parts * shares[i], kernels.threads);
    }
  });
  return out.object;
}

}  // namespace xeflash

#include "host/arrays/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace xeflash {
namespace {

// The steps of one dimension: stride x n for -before <= n <= after.
struct Stride {
  int64_t stride, before, after;
};

// Two arrays have at most this many steps.
struct Steps {
  std::array<Stride, 2 * kMaxDims> all;
  int count = 0;

  // Adds the steps between the elements of an array, in bytes.
  void add(const Array& a, int64_t before, int64_t after) {
    for (int i = 0; i < a.ndim; ++i) {
      const int64_t stride = a.strides[i] * size_of(a.dtype), most = a.shape[i] - 1;
      if (most <= 0) continue;
      Stride& step = all[count++] = {std::abs(stride), most * before, most * after};
      if (stride < 0) std::swap(step.before, step.after);
    }
  }
  void sort_longest_first() {
    std::sort(all.begin(), all.begin() + count,
              [](const Stride& a, const Stride& b) { return a.stride > b.stride; });
  }
  // Steps of equal strides follow each other here, and become one step.
  void merge_equal() {
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (kept > 0 && all[kept - 1].stride == all[i].stride) {
        all[kept - 1].before += all[i].before;
        all[kept - 1].after += all[i].after;
      } else {
        all[kept++] = all[i];
      }
    }
    count = kept;
  }
};

// Returns whether a sum of the steps from `at` on lies in (low, high). The sum of all shorter steps
// bounds how often each step can be taken, so few sums are tried where strides are nested.
class Search {
 public:
  explicit Search(const Steps& steps) : steps_(steps) {
    back_[steps.count] = forth_[steps.count] = 0;
    for (int i = steps.count; i-- > 0;) {
      back_[i] = back_[i + 1] + steps.all[i].stride * steps.all[i].before;
      forth_[i] = forth_[i + 1] + steps.all[i].stride * steps.all[i].after;
    }
  }

  // `moved`: whether some step was taken already; a sum of none does not count.
  bool reaches(int64_t low, int64_t high, int at, bool moved) {
    if (low >= forth_[at] || high <= -back_[at]) return false;
    if (at == steps_.count) return moved && low < 0 && high > 0;
    if (--work_ < 0) return true;
    const Stride& s = steps_.all[at];
    if (s.stride == 0) {  // any number of them is the same place
      return reaches(low, high, at + 1, moved || s.before + s.after > 0);
    }
    const int64_t first = std::max(-s.before, floor_of(low - forth_[at + 1], s.stride));
    const int64_t last = std::min(s.after, floor_of(high + back_[at + 1], s.stride) + 1);
    for (int64_t n = first; n <= last; ++n) {
      if (reaches(low - n * s.stride, high - n * s.stride, at + 1, moved || n != 0)) return true;
    }
    return false;
  }

 private:
  static int64_t floor_of(int64_t n, int64_t d) { return n / d - (n % d < 0); }

  const Steps& steps_;
  std::array<int64_t, 2 * kMaxDims + 1> back_, forth_;  // how far the steps from one on reach
  static constexpr int kMostWork = 10000;
  int work_ = kMostWork;
};

}  // namespace

bool overlap(const Array& a, const Array& b) {
  if (!a.data || !b.data || a.is_empty() || b.is_empty()) return false;
  // a's element - b's element = a.data - b.data + steps; they overlap if it is above -size of a
  // and below size of b.
  Steps steps;
  steps.add(a, 0, 1);
  steps.add(b, 1, 0);
  steps.sort_longest_first();
  steps.merge_equal();
  const int64_t apart = a.data - b.data;
  return Search(steps).reaches(-size_of(a.dtype) - apart, size_of(b.dtype) - apart, 0, true);
}

bool overlaps_itself(const Array& a) {
  if (a.is_empty()) return false;
  Steps steps;
  steps.add(a, 1, 1);
  steps.sort_longest_first();
  const int64_t size = size_of(a.dtype);
  return Search(steps).reaches(-size, size, 0, false);
}

}  // namespace xeflash

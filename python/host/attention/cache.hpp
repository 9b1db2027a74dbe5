// Reads and checks the cache of keys and values of a request.
#pragma once

#include <pybind11/pybind11.h>

#include "attention/params.hpp"
#include "host/arrays/array.hpp"
#include "host/attention/tree.hpp"
#include "host/device/fields.hpp"

namespace xeflash {

// The layout of the rows of K and V in a cache: see kernels/attention/cache.hpp.
enum class CacheKind : uint8_t { kPlain, kPaged, kBeam };
const char* name_of(CacheKind kind);

struct CacheRequest {
  bool given = false;  // by k_cache or v_cache; None is one that is refused
  py::object k_cache = py::none(), v_cache = py::none();
  py::object cache_seqlens = py::none();  // int32 array (batch); None: `cache_length`
  int64_t cache_length = -1;              // keys in use in every sequence; -1: all of the cache
  py::object cache_batch_idx = py::none(), cache_leftpad = py::none(), block_table = py::none(),
             beam_index = py::none();
  py::object tree_mask = py::none();  // int32, a bit per node of a tree of guesses, see tree.hpp
  py::object k_scale = py::none(), v_scale = py::none();  // None, a number, or an array
  py::object rotary_cos = py::none(), rotary_sin = py::none();
  py::object rotary_positions = py::none();  // int32 (batch, new keys)
  bool rotary_interleaved = true;
};

XF_SOME_FIELDS(CacheRequest, k_cache, v_cache, cache_seqlens, cache_length, cache_batch_idx,
               cache_leftpad, block_table, beam_index, tree_mask, k_scale, v_scale, rotary_cos,
               rotary_sin, rotary_positions, rotary_interleaved);
static_assert(is_complete<1>(kFieldsOf<CacheRequest>));  // and `given`

struct Cache {
  bool given = false;
  CacheKind kind = CacheKind::kPlain;
  Array lengths, sequences, left_pad, table, k_scale, v_scale;  // without data: not given
  bool scales_of_rows = false;  // k_scale has a scale per row, which appending writes
  float k_factor = 1, v_factor = 1;
  Array new_k, new_v, cos, sin, positions;
  TreeRows tree;
  int64_t added = 0, rotary_dim = 0;
  int64_t page = 0, capacity = 0;  // rows of a sequence that there is room for
  int64_t max_keys = 0;            // of a sequence, as far as it is known without asking a device
};

ScaleArg scale_arg(const Array& scale, const Cache& cache);

struct FwdRequest;
struct Problem;

// The types that K and V of a cache may have besides the type of q. V may also be in 4 bits.
bool is_quantised(DType dtype);
constexpr const char* kQuantisedTypes[] = {
    ", float8_e4m3fn, float8_e5m2 or int8",
    ", float8_e4m3fn, float8_e5m2, int8, or uint8 of two columns each"};

// Checks a V in 4 bits, and what is beside it; `like` is an array of 16 bits of the call.
void check_nibbles(const Problem& problem, const char* like, const Checker& check);

// Reads the scales of the caches of a problem whose batch and heads are known; `part` says what the
// batch is of: sequences, or tokens.
void read_scales(Problem& problem, const py::object& k_scale, const py::object& v_scale,
                 const char* part, const Checker& check);

// Fills problem.cache from a request with q, k and v read; refuses like read_problem.
void read_cache(Problem& problem, const FwdRequest& request);

}  // namespace xeflash

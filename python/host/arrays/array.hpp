// Reads arrays of any framework as a kernel sees them: a pointer, a shape, strides, a type and the
// queue that they belong to.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/arrays/interop.hpp"

namespace xeflash {
namespace py = pybind11;

enum class DType : uint8_t { kOther, kF32, kF16, kBF16, kBool, kI32, kE4M3, kE5M2, kI8, kU8, kI64 };
const char* name_of(DType dtype);
int64_t size_of(DType dtype);
inline bool is_float(DType t) {  // true if it is multiplied as it is
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16;
}

constexpr int kMaxDims = 8;

// The framework of an array; it decides how results are made.
enum class Maker : uint8_t { kExchange, kNumpy, kOther };

struct Array {
  py::object object;  // keeps the memory alive
  Maker maker = Maker::kOther;
  const void* exchange = nullptr;  // dlpack::ExchangeApi of the maker
  int32_t device_type = 1;         // of DLPack
  int32_t device_id = 0;           // torch's index: N of xpu:N

  std::shared_ptr<const Array> copied;  // the caller's array, if this is a copy of it
  std::shared_ptr<const Array> seen;    // a copy in host memory: see let_host_see in place.hpp

  std::byte* data = nullptr;
  int ndim = 0;
  std::array<int64_t, kMaxDims> shape{}, strides{};  // strides in elements
  DType dtype = DType::kOther;
  void* queue = nullptr;      // sycl::queue*, null: host memory
  bool whole_strides = true;  // they are multiples of the element's size
  bool writable = true;
  bool stream_ordered = false;  // freed memory is not reused before its stream has got there

  bool is_packed() const;
  bool is_empty() const;
  bool has_contiguous_rows() const;  // the last dimension has a stride of 1, if that matters
  std::string describe_shape() const;
  std::string describe_strides() const;
  std::string describe_dtype() const;  // of others than DType, too
  std::string place() const;           // where it lies, for messages
};

// Returns the name of a type in descriptions of kernels; None for any other type.
inline py::object to_python(DType t) {
  return t == DType::kOther ? py::object(py::none()) : py::str(name_of(t));
}

template <class Shape = std::initializer_list<int64_t>>
bool has_shape(const Array& a, const Shape& shape) {
  return std::equal(shape.begin(), shape.end(), a.shape.begin(), a.shape.begin() + a.ndim);
}

// The bytes of all elements.
int64_t bytes_of(const Array& array);

class Checker;

// Reads `object`, which messages call `name`; raises a TypeError if it is not an array.
Array read_array(py::handle object, const Checker& check, const char* name);

// Returns a new packed array of the same framework, device and queue as `like`.
Array new_array(const Array& like, DType dtype, const std::vector<int64_t>& shape);

// Returns the array itself, or a copy if its strides are not whole elements.
Array with_whole_strides(Array array, const Checker& check, const char* name);
// Returns the array itself, or a copy if its last dimension is not contiguous.
Array with_contiguous_rows(Array array, const Checker& check, const char* name);
// Reads an array whose last dimension is contiguous, or copies it if it is not.
Array read_rows(py::handle object, const Checker& check, const char* name);
// Returns the array that a function of runtime.interop makes of an array.
Array copy_by(const char* maker, Array array, const Checker& check, const char* name,
              const py::tuple& more = py::tuple());
// Tells torch what a call writes into: autograd refuses what it saved and was changed.
void count_writes(std::initializer_list<const Array*> written);
// Returns a packed copy.
Array packed_copy(Array array, const Checker& check, const char* name);
// Returns the array itself, or a copy in fp32 if it has another type.
Array as_float32(Array array, const Checker& check, const char* name);

}  // namespace xeflash

#include "host/arrays/array.hpp"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "host/arrays/checks.hpp"
#include "host/arrays/dlpack.hpp"
#include "host/arrays/interop.hpp"
#include "host/arrays/xpu_stream.hpp"
#include "host/device/runtime.hpp"

namespace xeflash {
namespace {

[[noreturn]] void not_an_array(py::handle object, const Checker& check, const char* name) {
  check.refuse<py::type_error>(
      name,
      std::string(
          "must be a torch tensor, a numpy array or have __sycl_usm_array_interface__, got ") +
          Py_TYPE(object.ptr())->tp_name);
}

// An element type, with the numbers that DLPack, numpy and torch have for it. numpy registers the
// types of ml_dtypes at run time: they have -1 here.
struct DTypeRow {
  const char* name;
  int bytes;
  dlpack::DataType exchanged;
  int numpy;
};
constexpr DTypeRow kTypes[] = {
    // in the order of DType
    {"another type", 2, {}, -1},
    {"float32", 4, {dlpack::kFloat, 32, 1}, 11},
    {"float16", 2, {dlpack::kFloat, 16, 1}, 23},
    {"bfloat16", 2, {dlpack::kBfloat, 16, 1}, -1},
    {"bool", 1, {dlpack::kBool, 8, 1}, 0},
    {"int32", 4, {dlpack::kInt, 32, 1}, 5},
    {"float8_e4m3fn", 1, {dlpack::kE4M3, 8, 1}, -1},
    {"float8_e5m2", 1, {dlpack::kE5M2, 8, 1}, -1},
    {"int8", 1, {dlpack::kInt, 8, 1}, 1},
    {"uint8", 1, {dlpack::kUInt, 8, 1}, 2},
    {"int64", 8, {dlpack::kInt, 64, 1}, 7},
};
static_assert(std::size(kTypes) == static_cast<size_t>(DType::kI64) + 1);
constexpr const DTypeRow& row_of(DType t) { return kTypes[static_cast<uint8_t>(t)]; }

// Returns the first type that `has` accepts.
template <class Has>
DType dtype_that(Has has) {
  for (int i = 1; i < std::ssize(kTypes); ++i)
    if (has(kTypes[i])) return static_cast<DType>(i);
  return DType::kOther;
}

// Returns whether torch marks the tensor as a view whose memory holds the negated values.
bool is_negated(py::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  PyObject* negated = PyObject_CallMethodNoArgs(tensor.ptr(), name);
  if (!negated) PyErr_Clear();  // no tensor of torch's
  Py_XDECREF(negated);
  return negated == Py_True;
}

// Returns the exchange interface of a type, which is looked up once per type.
const dlpack::ExchangeApi* exchange_of(PyTypeObject* type) {
  thread_local PyTypeObject* last_type = nullptr;
  thread_local const dlpack::ExchangeApi* last_api = nullptr;
  if (type == last_type) return last_api;
  const dlpack::ExchangeApi* api = nullptr;
  if (PyObject* capsule =
          PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__")) {
    api = static_cast<const dlpack::ExchangeApi*>(
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
    while (api && api->version.major != 1) api = api->previous;
    if (api && !api->view_from_object) api = nullptr;
  }
  PyErr_Clear();
  Py_INCREF(type);  // kept: a freed type's address could be reused by another
  last_type = type;
  last_api = api;
  return api;
}

void set_shape(Array& a, int ndim, const int64_t* shape, const int64_t* strides) {
  a.ndim = ndim;
  int64_t packed = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    a.shape[i] = shape[i];
    a.strides[i] = strides ? strides[i] : packed;
    packed *= shape[i];
  }
}

Array read_exchange(py::handle object, const dlpack::ExchangeApi* api, const Checker& check,
                    const char* name) {
  if (is_negated(object)) {
    Array values = read_exchange(object.attr("resolve_neg")(), api, check, name);
    values.writable = false;
    return values;
  }
  dlpack::Tensor t;
  if (api->view_from_object(object.ptr(), &t) != 0) {
    const py::error_already_set error;
    const auto reason = py::str(error.value()).cast<std::string>();
    check.refuse<py::type_error>(name, "must be a dense tensor on a cpu or xpu device: " +
                                           reason.substr(0, reason.find('\n')));
  }
  Array a;
  a.object = py::reinterpret_borrow<py::object>(object);
  a.maker = Maker::kExchange;
  a.stream_ordered = true;  // torch's caching allocator
  a.exchange = api;
  a.device_type = t.device.type;
  a.device_id = t.device.id;
  if (t.ndim > kMaxDims) check.refuse(name, "has more than 8 dimensions");
  a.data = static_cast<std::byte*>(t.data) + t.byte_offset;
  set_shape(a, t.ndim, t.shape, t.strides);
  a.dtype = dtype_that([&](const DTypeRow& row) { return row.exchanged == t.dtype; });
  if (!t.data && !a.is_empty()) {
    check.refuse<py::type_error>(name, "must have its values in memory, got a tensor without data");
  }
  if (t.device.type == dlpack::kOneApi) {
    const XpuStream stream = current_stream_of(object, *api, t.device.id);
    a.device_id = stream.device;
    a.queue = stream.queue;
    if (!a.queue) {
      check.refuse(
          name, "must be on a stream that has a SYCL queue, got none from torch for " + a.place());
    }
  } else if (t.device.type != dlpack::kCpu) {
    check.refuse<py::type_error>(name, "must be on a cpu or xpu device, got DLPack device type " +
                                           std::to_string(t.device.type));
  }
  return a;
}

DType dtype_of_numpy(py::handle descriptor) {
  const auto* d = py::detail::array_descriptor_proxy(descriptor.ptr());
  if (d->byteorder == '>') return DType::kOther;
  constexpr int kLong = 7, kLongLong = 9, kOwn = 256;  // numpy's own are below kOwn
  const int number = d->type_num == kLongLong ? kLong : d->type_num;
  if (number < 0) return DType::kOther;  // types that numpy does not count
  if (number < kOwn) return dtype_that([=](const DTypeRow& row) { return row.numpy == number; });
  const auto name = py::str(descriptor).cast<std::string>();
  return dtype_that([&](const DTypeRow& row) { return row.numpy < 0 && name == row.name; });
}

Array read_numpy(py::handle object, const Checker& check, const char* name) {
  const auto* n = py::detail::array_proxy(object.ptr());
  if (n->nd > kMaxDims) check.refuse(name, "has more than 8 dimensions");
  Array a;
  a.object = py::reinterpret_borrow<py::object>(object);
  a.maker = Maker::kNumpy;
  a.data = reinterpret_cast<std::byte*>(n->data);
  a.dtype = dtype_of_numpy(n->descr);
  a.writable = n->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  a.ndim = n->nd;
  const int64_t size = a.dtype == DType::kOther ? 1 : size_of(a.dtype);
  for (int i = 0; i < n->nd; ++i) {
    a.shape[i] = n->dimensions[i];
    a.strides[i] = n->strides[i] / size;
    if (n->strides[i] % size && n->dimensions[i] > 1) a.whole_strides = false;
  }
  return a;
}

// Returns whether an object is an np.ndarray or of a subclass, such as np.memmap. It does not
// import numpy for that.
bool is_numpy_subclass(py::handle object) {
  return PyDict_GetItemString(PyImport_GetModuleDict(), "numpy") &&
         py::isinstance<py::array>(object);
}

void refuse_masked(py::handle object, const Checker& check, const char* name) {
  const py::object masked = py::module_::import("numpy").attr("ma").attr("MaskedArray");
  if (!py::isinstance(object, masked)) return;
  check.refuse<py::type_error>(
      name, std::string("must not be a masked array, as its mask would be lost, got ") +
                Py_TYPE(object.ptr())->tp_name);
}

// Reads any other array through Python: see runtime.interop.describe.
Array read_other(py::handle object, const Checker& check, const char* name) {
  const py::object description = interop().attr("describe")(object);
  if (description.is_none()) not_an_array(object, check, name);
  const auto d = description.cast<py::tuple>();
  Array a;
  a.object = py::reinterpret_borrow<py::object>(object);
  a.data = reinterpret_cast<std::byte*>(d[0].cast<uintptr_t>());
  const auto shape = d[1].cast<py::tuple>();
  if (shape.size() > kMaxDims) check.refuse(name, "has more than 8 dimensions");
  std::array<int64_t, kMaxDims> sizes{}, strides{};
  for (size_t i = 0; i < shape.size(); ++i) sizes[i] = shape[i].cast<int64_t>();
  if (!d[2].is_none()) {
    const auto given = d[2].cast<py::tuple>();
    for (size_t i = 0; i < shape.size(); ++i) strides[i] = given[i].cast<int64_t>();
  }
  set_shape(a, static_cast<int>(shape.size()), sizes.data(),
            d[2].is_none() ? nullptr : strides.data());
  const auto dtype = d[3].cast<std::string>();
  a.dtype = dtype_that([&](const DTypeRow& row) { return dtype == row.name; });
  a.queue = reinterpret_cast<void*>(d[4].cast<uintptr_t>());
  a.writable = d[5].cast<bool>();
  a.stream_ordered = d[6].cast<bool>();
  if (const auto xpu = d[7].cast<int32_t>(); xpu >= 0) {
    a.device_type = dlpack::kOneApi;
    a.device_id = xpu;
  }
  if (a.queue && !a.is_empty() && !reaches(*static_cast<sycl::queue*>(a.queue), a.data)) {
    check.refuse(name, "must lie in memory of the SYCL context of its queue, got an address that " +
                           a.place() + " does not know");
  }
  return a;
}

py::tuple shape_tuple(const std::vector<int64_t>& shape) {
  py::tuple t(shape.size());
  size_t i = 0;
  for (int64_t n : shape) t[i++] = n;
  return t;
}

std::string describe(const std::array<int64_t, kMaxDims>& numbers, int count) {
  return text_of_shape({numbers.begin(), numbers.begin() + count});
}

// The checker for reading a new array, which is never refused.
const Checker& result_checker() {
  static const std::string nobody;
  static const Checker check(nobody);
  return check;
}

void raise_from_exchange(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "allocating the result: %s: %s", kind, message);
}

}  // namespace

const char* name_of(DType dtype) { return row_of(dtype).name; }
int64_t size_of(DType dtype) { return row_of(dtype).bytes; }

bool Array::is_packed() const {
  if (is_empty()) return true;
  int64_t packed = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != packed) return false;
    packed *= shape[i];
  }
  return true;
}

bool Array::is_empty() const {
  return std::any_of(shape.begin(), shape.begin() + ndim, [](int64_t n) { return n == 0; });
}

int64_t bytes_of(const Array& a) {
  return std::accumulate(a.shape.begin(), a.shape.begin() + a.ndim, size_of(a.dtype),
                         std::multiplies<>());
}

bool Array::has_contiguous_rows() const {
  if (ndim == 0 || is_empty()) return true;
  return whole_strides && (strides[ndim - 1] == 1 || shape[ndim - 1] == 1);
}

std::string Array::describe_shape() const { return describe(shape, ndim); }

std::string Array::describe_strides() const { return describe(strides, ndim); }

std::string Array::describe_dtype() const {
  if (dtype != DType::kOther || !py::hasattr(object, "dtype")) return name_of(dtype);
  const std::string name = py::str(object.attr("dtype")), prefix = "torch.";
  return name.rfind(prefix, 0) == 0 ? name.substr(prefix.size()) : name;
}

std::string Array::place() const {
  if (device_type == dlpack::kOneApi) return "xpu:" + std::to_string(device_id);
  if (!queue || queue == &host_queue()) return "host memory";  // a Placeholder has it, too
  return "a SYCL queue of " + facts_of(static_cast<sycl::queue*>(queue)->get_device()).name;
}

Array read_array(py::handle object, const Checker& check, const char* name) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (std::strcmp(type->tp_name, "numpy.ndarray") == 0) return read_numpy(object, check, name);
  if (const auto* api = exchange_of(type)) return read_exchange(object, api, check, name);
  if (is_numpy_subclass(object)) {
    refuse_masked(object, check, name);
    return read_numpy(object, check, name);
  }
  return read_other(object, check, name);
}

Array new_array(const Array& like, DType dtype, const std::vector<int64_t>& shape) {
  // torch's interface makes no tensors on xpu.
  if (like.maker == Maker::kExchange && !like.queue) {
    const auto* api = static_cast<const dlpack::ExchangeApi*>(like.exchange);
    std::array<int64_t, kMaxDims> sizes{};
    std::copy(shape.begin(), shape.end(), sizes.begin());
    dlpack::Tensor prototype{nullptr,
                             {like.device_type, like.device_id},
                             static_cast<int32_t>(shape.size()),
                             row_of(dtype).exchanged,
                             sizes.data(),
                             nullptr,
                             0};
    dlpack::ManagedTensor* tensor = nullptr;
    void* object = nullptr;
    if (api->allocate(&prototype, &tensor, nullptr, raise_from_exchange) != 0 ||
        api->to_object(tensor, &object) != 0) {
      throw py::error_already_set();
    }
    return read_exchange(py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)), api,
                         result_checker(), "out");
  }
  if (like.maker == Maker::kNumpy) {
    const auto type = dtype == like.dtype    ? like.object.attr("dtype").cast<py::dtype>()
                      : dtype == DType::kI64 ? py::dtype::of<int64_t>()
                                             : py::dtype::of<float>();
    const std::vector<py::ssize_t> sizes(shape.begin(), shape.end());
    return read_numpy(py::array(type, sizes), result_checker(), "out");
  }
  const py::object object =
      interop().attr("empty")(like.object, name_of(dtype), shape_tuple(shape));
  return read_array(object, result_checker(), "out");
}

void count_writes(std::initializer_list<const Array*> written) {
  py::list tensors;
  for (const Array* a : written) {
    if (a->data && a->maker == Maker::kExchange) tensors.append(a->object);
  }
  if (!tensors.empty()) interop().attr("count_writes")(tensors);
}

namespace {

// Returns the array's object, or a view of the object if the array has another shape or other
// strides.
py::object view_of(const Array& a, const Checker& check, const char* name) {
  const Array whole = read_array(a.object, check, name);
  if (whole.data != a.data) throw std::logic_error("an array must begin where its object does");
  const auto are_same = [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.begin() + a.ndim, y.begin());
  };
  if (whole.ndim == a.ndim && are_same(whole.shape, a.shape) && are_same(whole.strides, a.strides))
    return a.object;
  const auto numbers = [&](const auto& x) {
    return shape_tuple(std::vector<int64_t>(x.begin(), x.begin() + a.ndim));
  };
  return interop().attr("as_strided")(a.object, numbers(a.shape), numbers(a.strides));
}

}  // namespace

Array copy_by(const char* maker, Array array, const Checker& check, const char* name,
              const py::tuple& more) {
  const py::object view = view_of(array, check, name);
  const py::object made = interop().attr(maker)(view, check.function(), check.word(name), *more);
  Array copy = read_array(made, check, name);
  copy.copied = std::make_shared<const Array>(std::move(array));
  return copy;
}

Array with_whole_strides(Array array, const Checker& check, const char* name) {
  if (array.whole_strides) return array;
  return copy_by("contiguous", std::move(array), check, name);
}

Array with_contiguous_rows(Array array, const Checker& check, const char* name) {
  if (array.has_contiguous_rows()) return array;
  return copy_by("contiguous", std::move(array), check, name);
}

Array read_rows(py::handle object, const Checker& check, const char* name) {
  return with_contiguous_rows(read_array(object, check, name), check, name);
}

Array packed_copy(Array array, const Checker& check, const char* name) {
  return copy_by("packed", std::move(array), check, name);
}

Array as_float32(Array array, const Checker& check, const char* name) {
  if (array.dtype == DType::kF32) return array;
  return copy_by("to_float32", std::move(array), check, name);
}

}  // namespace xeflash

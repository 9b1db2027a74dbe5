// The part of DLPack's C exchange interface (version 1) that is used here: how torch hands over a
// tensor's pointer, shape and strides, makes a new tensor, and names its current stream, without
// Python calls and without its C++ ABI.
#pragma once

#include <cstdint>

namespace xeflash::dlpack {

struct Version {
  uint32_t major, minor;
};
struct Device {
  int32_t type, id;
};
constexpr int32_t kCpu = 1, kOneApi = 14;

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
  bool operator==(const DataType&) const = default;
};
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4M3 = 10, kE5M2 = 12;

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: packed
  uint64_t byte_offset;
};

struct ManagedTensor;

struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, ManagedTensor** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedTensor** out);
  int (*to_object)(ManagedTensor* tensor, void** out);
  int (*view_from_object)(void* object, Tensor* out);  // borrows: valid while the object lives
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace xeflash::dlpack

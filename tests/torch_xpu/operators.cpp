// The operators that a backend has to have: making, viewing and copying tensors. All others run on
// the CPU, on copies.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/DeviceGuard.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <torch/library.h>

#include "graph.hpp"

namespace torch_xpu {
namespace {
using at::IntArrayRef;
using at::Tensor;
using c10::xpu::getCurrentXPUStream;
template <class T>
using Maybe = std::optional<T>;

c10::Allocator* memory() { return c10::xpu::XPUCachingAllocator::get(); }
sycl::queue& queue_of(const Tensor& t) { return getCurrentXPUStream(t.get_device()).queue(); }

c10::Device given_or_current(Maybe<c10::Device> device) {
  if (device && device->has_index()) return *device;
  return {c10::kXPU, c10::xpu::current_device()};
}

void refuse_pinned(Maybe<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

// ---- making ------------------------------------------------------------------------------------

const c10::DispatchKeySet kKeys(c10::DispatchKey::XPU);

Tensor empty(c10::SymIntArrayRef size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>,
             Maybe<c10::Device> device, Maybe<bool> pinned, Maybe<at::MemoryFormat> format) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(given_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), memory(), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<c10::Device> device,
                     Maybe<bool> pinned) {
  refuse_pinned(pinned);
  const c10::DeviceGuard guard(given_or_current(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), memory(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// From the beginning of the storage to the last element.
size_t bytes_of_storage(const c10::TensorImpl& t) {
  if (t.numel() == 0) return 0;
  int64_t last = t.storage_offset();
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  return static_cast<size_t>(last + 1) * t.itemsize();
}

void grow_storage(c10::TensorImpl& t) {
  const size_t bytes = bytes_of_storage(t);
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return;
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(t.device());
  auto data = memory()->allocate(bytes);
  if (storage->nbytes()) {
    getCurrentXPUStream(t.device().index())
        .queue()
        .memcpy(data.get(), storage->data(), storage->nbytes());
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size,
                      Maybe<at::MemoryFormat> format) {
  auto& t = *self.unsafeGetTensorImpl();
  const auto wanted = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() != wanted) t.set_sizes_contiguous(wanted);
  if (format && *format != at::MemoryFormat::Preserve) t.empty_tensor_restride(*format);
  grow_storage(t);
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage storage, c10::SymInt offset,
                    c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto& t = *self.unsafeGetTensorImpl();
  t.set_storage_keep_dtype(std::move(storage));
  t.set_storage_offset(offset.expect_int());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.empty() && !sizes.empty()) {
    t.set_sizes_contiguous(sizes);
  } else {
    t.set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride));
  }
  grow_storage(t);
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage storage) {
  const c10::SymInt size(static_cast<int64_t>(storage.nbytes() / self.itemsize())), one(1);
  return set_storage(self, std::move(storage), 0, {&size, 1}, {&one, 1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(),
                     source.sym_strides());
}

Tensor& set_nothing(Tensor& self) {
  const c10::SymInt zero(0);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 0, memory()->allocate(0), memory(),
                             true);
  return set_storage(self, storage, 0, {&zero, 1}, {});
}

// ---- copying -----------------------------------------------------------------------------------

size_t bytes_between_first_and_last(const Tensor& t) {
  return bytes_of_storage(*t.unsafeGetTensorImpl()) -
         (t.numel() ? static_cast<size_t>(t.storage_offset()) * t.itemsize() : 0);
}

// The same elements with the same strides on the host, and as lazily negated or conjugated.
Tensor on_host(const Tensor& t) {
  Tensor host = at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU));
  const size_t bytes = bytes_between_first_and_last(t);
  if (bytes) queue_of(t).memcpy(host.data_ptr(), t.data_ptr(), bytes).wait_and_throw();
  host._set_neg(t.is_neg());
  host._set_conj(t.is_conj());
  return host;
}

void from_host(const Tensor& t, const Tensor& host) {
  const size_t bytes = bytes_between_first_and_last(t);
  if (bytes) queue_of(t).memcpy(t.data_ptr(), host.data_ptr(), bytes).wait_and_throw();
}

bool are_same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_neg() == b.is_neg() && a.is_conj() == b.is_conj();
}

// On the source's stream, which its memory is freed in the order of; the target's waits for it, and
// it for what the target's has to do before.
Tensor& copy_between_devices(Tensor& self, const Tensor& source) {
  sycl::queue &to = queue_of(self), &from = queue_of(source);
  from.ext_oneapi_submit_barrier({to.ext_oneapi_submit_barrier()});
  const auto done = from.memcpy(self.data_ptr(), source.data_ptr(), self.nbytes());
  to.ext_oneapi_submit_barrier({done});
  return self;
}

// The block is used again once the current stream has got here; false if the memory is not pinned.
bool keep_pinned(const Tensor& host) {
  const auto& data = host.storage().data_ptr();
  const auto stream = getCurrentXPUStream().unwrap();
  return at::getHostAllocator(c10::kXPU)->record_event(data.get(), data.get_context(), stream);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  const Tensor& on_device = self.is_xpu() ? self : source;
  const c10::DeviceGuard guard(on_device.device());
  if (self.is_xpu() && source.is_xpu() && self.device() != source.device()) {
    if (are_same_bytes(self, source)) return copy_between_devices(self, source);
  }
  if (are_same_bytes(self, source)) {
    auto done = queue_of(on_device).memcpy(self.data_ptr(), source.data_ptr(), self.nbytes());
    const bool both = self.is_xpu() && source.is_xpu();
    const Tensor& host = self.is_xpu() ? source : self;
    if (!both && (!non_blocking || !keep_pinned(host))) done.wait_and_throw();
    return self;
  }
  if (is_recording()) {
    at_replay(
        [self = unowned(self), source = unowned(source)]() mutable { copy_(self, source, 0); });
    return self;
  }
  const Tensor from = source.is_xpu() ? on_host(source) : source;
  if (!self.is_xpu()) return self.copy_(from);
  Tensor host = on_host(self);
  host.copy_(from);
  from_host(self, host);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

c10::Scalar local_scalar_dense(const Tensor& self) { return on_host(self).item(); }

Tensor& zero_(Tensor& self) {
  if (self.is_non_overlapping_and_dense()) {
    if (self.nbytes()) queue_of(self).memset(self.data_ptr(), 0, self.nbytes());
    return self;
  }
  if (is_recording()) {
    at_replay([self = unowned(self)]() mutable { torch_xpu::zero_(self); });
    return self;
  }
  Tensor host = on_host(self);
  from_host(self, host.zero_());
  return self;
}

void record_stream(Tensor& self, c10::Stream stream) {
  c10::xpu::XPUCachingAllocator::recordStream(self.storage().data_ptr(),
                                              c10::xpu::XPUStream(stream));
}

// ---- everything else ---------------------------------------------------------------------------

// Random numbers come from a generator of the CPU that is seeded from the device's, which moves on.
c10::IValue cpu_generator_for(const c10::IValue& given) {
  at::Generator generator = given.isNone() ? at::Generator() : given.toGenerator();
  if (!generator.defined()) {
    const c10::Device device(c10::kXPU, c10::xpu::current_device());
    generator = at::globalContext().defaultGenerator(device);
  }
  if (generator.device().type() != c10::kXPU) return given;
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + 4);
  return at::detail::createCPUGenerator(generator.current_seed() ^
                                        (offset * 0x9E3779B97F4A7C15ull));
}

// Torch's own counts integers on devices alone.
Tensor histc(const Tensor& x, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const Tensor host = x.cpu();
  const bool whole = at::isIntegralType(host.scalar_type(), false);
  return at::histc(whole ? host.to(at::kDouble) : host, bins, min, max).to(x.options());
}

// Torch's choice among its own attention kernels has no place for a backend that is loaded later.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Maybe<Tensor>& mask,
                 double dropout, bool causal, Maybe<double> scale, bool gqa) {
  if (!q.is_xpu()) {
    return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
  }
  Maybe<Tensor> bias = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    bias = at::zeros_like(*mask, q.options()).masked_fill_(mask->logical_not(), -INFINITY);
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, bias, dropout, causal,
                                                            std::nullopt, scale, gqa));
}

}  // namespace

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.operator_name().name;
  // A process group would send a copy, and what it receives would go to another one.
  TORCH_CHECK_NOT_IMPLEMENTED(
      name.rfind("c10d::", 0) != 0, name,
      ": this process group cannot move tensors of simulated GPUs; one whose backend is "
      "registered for xpu can (tests/distributed/staged.py)");
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    value = cpu_generator_for(value);
  }
  if (is_recording()) return record_call(op, stack);
  at::native::cpu_fallback(op, stack);
}

namespace {

TORCH_LIBRARY_IMPL(_, XPU, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, XPU, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("zero_", zero_);
  m.impl("record_stream", record_stream);
  m.impl("histc", histc);
}

// Torch warns of who replaces an operator of its own.
struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const auto replaced = [] {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten",
                                                  c10::DispatchKey::CompositeImplicitAutograd,
                                                  __FILE__, __LINE__);
  library->impl("scaled_dot_product_attention", attention);
  return library;
}();

}  // namespace
}  // namespace torch_xpu

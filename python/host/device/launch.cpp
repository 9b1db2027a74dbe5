#include "host/device/launch.hpp"

namespace xeflash {
namespace {

thread_local Rehearsal* rehearsal = nullptr;

}  // namespace

Rehearsal::Rehearsal(DeviceFacts facts, py::object provider)
    : device(host_queue(), std::move(facts)), provider(std::move(provider)) {
  rehearsal = this;
}
Rehearsal::~Rehearsal() { rehearsal = nullptr; }
Rehearsal* Rehearsal::current() { return rehearsal; }

Place place_on(void* address, bool frees_in_order) {
  if (rehearsal) return {host_queue(), rehearsal->device, true, true, true};
  if (!address) {
    sycl::queue& queue = host_queue();
    static const Device& device = device_of(queue);
    return {queue, device, true, true, true};
  }
  auto& queue = *static_cast<sycl::queue*>(address);
  const bool in_order = queue.is_in_order();
  return {queue, device_of(queue), false, in_order, !in_order || !frees_in_order};
}

}  // namespace xeflash

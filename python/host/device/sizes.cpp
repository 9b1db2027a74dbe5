#include "host/device/sizes.hpp"

#include "host/device/errors.hpp"

namespace xeflash {
namespace {

// Returns the numbers that a function of xeflash.tune has for a device. It is asked once; threads
// that ask at the same time get equal numbers.
template <class Numbers>
const Numbers& numbers_of(const Device& device, std::atomic<const Numbers*>& known,
                          const char* function) {
  if (const Numbers* numbers = known) return *numbers;
  const DeviceFacts& facts = device.facts;
  if (facts.arch.empty()) throw NotImplemented(facts.no_kernels);
  auto* numbers = new Numbers;
  const py::object find = py::module_::import("xeflash.tune").attr(function);
  read(*numbers, find(facts.arch, facts.name, facts.driver));
  known = numbers;
  return *numbers;
}

}  // namespace

const Schedule& schedule_of(const Device& device) {
  return numbers_of(device, device.schedule, "schedule");
}

const ProductSchedule& product_schedule_of(const Device& device) {
  return numbers_of(device, device.product_schedule, "product_schedule");
}

}  // namespace xeflash

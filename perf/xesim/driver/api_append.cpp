// Copies, fills, barriers and events in command lists.
#include <cstring>

#include "driver/append.hpp"
#include "driver/host_access.hpp"

using namespace xesim::driver;

namespace {

void copy(void* to, const void* from, size_t bytes) {
  // Both ends are looked at before a byte is written.
  uint8_t* target = host_view(to, bytes, "copy, destination");
  const uint8_t* source = host_view(from, bytes, "copy, source");
  std::memmove(target, source, bytes);
}

void fill(void* to, const std::vector<uint8_t>& pattern, size_t bytes) {
  uint8_t* target = host_view(to, bytes, "fill");
  if (pattern.size() == 1) {
    std::memset(target, pattern[0], bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += pattern.size()) {
    std::memcpy(target + at, pattern.data(), std::min(pattern.size(), bytes - at));
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t handle, void* to,
                                          const void* from, size_t bytes, ze_event_handle_t signal,
                                          uint32_t wait_count, ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(to);
    require(from);
    return append(*list, [=] { copy(to, from, bytes); }, signal, wait_count, waits);
  });
}

ze_result_t zeCommandListAppendMemoryCopyFromContext(ze_command_list_handle_t handle, void* to,
                                                     ze_context_handle_t from_context,
                                                     const void* from, size_t bytes,
                                                     ze_event_handle_t signal, uint32_t wait_count,
                                                     ze_event_handle_t* waits) {
  return guarded([&] {
    get<Context>(from_context);
    return zeCommandListAppendMemoryCopy(handle, to, from, bytes, signal, wait_count, waits);
  });
}

ze_result_t zeCommandListAppendMemoryCopyRegion(
    ze_command_list_handle_t handle, void* to, const ze_copy_region_t* to_region, uint32_t to_pitch,
    uint32_t to_slice_pitch, const void* from, const ze_copy_region_t* from_region,
    uint32_t from_pitch, uint32_t from_slice_pitch, ze_event_handle_t signal, uint32_t wait_count,
    ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(to);
    require(from);
    require(to_region);
    require(from_region);
    const ze_copy_region_t target = *to_region, source = *from_region;
    auto row = [](const ze_copy_region_t& r, uint32_t y, uint32_t z, uint32_t pitch,
                  uint32_t slice_pitch) {
      return r.originX + uint64_t{r.originY + y} * pitch + uint64_t{r.originZ + z} * slice_pitch;
    };
    auto run = [=] {
      for (uint32_t z = 0; z < std::max(source.depth, 1u); ++z) {
        for (uint32_t y = 0; y < std::max(source.height, 1u); ++y) {
          copy(static_cast<uint8_t*>(to) + row(target, y, z, to_pitch, to_slice_pitch),
               static_cast<const uint8_t*>(from) + row(source, y, z, from_pitch, from_slice_pitch),
               source.width);
        }
      }
    };
    return append(*list, run, signal, wait_count, waits);
  });
}

ze_result_t zeCommandListAppendMemoryFill(ze_command_list_handle_t handle, void* to,
                                          const void* pattern, size_t pattern_bytes, size_t bytes,
                                          ze_event_handle_t signal, uint32_t wait_count,
                                          ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(to);
    require(pattern);
    if (pattern_bytes == 0 || (pattern_bytes & (pattern_bytes - 1)) != 0)
      refuse(ZE_RESULT_ERROR_INVALID_SIZE);
    const auto* first = static_cast<const uint8_t*>(pattern);
    auto run = [=, value = std::vector<uint8_t>(first, first + pattern_bytes)] {
      fill(to, value, bytes);
    };
    return append(*list, std::move(run), signal, wait_count, waits);
  });
}

ze_result_t zeCommandListAppendMemoryPrefetch(ze_command_list_handle_t handle, const void* pointer,
                                              size_t) {
  return guarded([&] {
    get<CommandList>(handle);
    require(pointer);
  });
}

ze_result_t zeCommandListAppendMemAdvise(ze_command_list_handle_t handle, ze_device_handle_t device,
                                         const void* pointer, size_t, ze_memory_advice_t) {
  return guarded([&] {
    get<CommandList>(handle);
    device_of(device);
    require(pointer);
  });
}

ze_result_t zeCommandListAppendBarrier(ze_command_list_handle_t handle, ze_event_handle_t signal,
                                       uint32_t wait_count, ze_event_handle_t* waits) {
  return guarded([&] { return append(*get<CommandList>(handle), {}, signal, wait_count, waits); });
}

ze_result_t zeCommandListAppendMemoryRangesBarrier(ze_command_list_handle_t handle, uint32_t,
                                                   const size_t*, const void**,
                                                   ze_event_handle_t signal, uint32_t wait_count,
                                                   ze_event_handle_t* waits) {
  return zeCommandListAppendBarrier(handle, signal, wait_count, waits);
}

ze_result_t zeCommandListAppendSignalEvent(ze_command_list_handle_t handle,
                                           ze_event_handle_t event) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    if (event == nullptr) refuse(ZE_RESULT_ERROR_INVALID_NULL_HANDLE);
    return append(*list, {}, event, 0, nullptr);
  });
}

ze_result_t zeCommandListAppendWaitOnEvents(ze_command_list_handle_t handle, uint32_t count,
                                            ze_event_handle_t* events) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(events);
    return append(*list, {}, nullptr, count, events);
  });
}

ze_result_t zeCommandListAppendEventReset(ze_command_list_handle_t handle,
                                          ze_event_handle_t event) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    const auto target = get<Event>(event);
    if (target->counter_based) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    auto command = std::make_shared<Command>();
    command->reset = target;
    return append(*list, std::move(command));
  });
}

ze_result_t zeCommandListAppendWriteGlobalTimestamp(ze_command_list_handle_t handle, uint64_t* to,
                                                    ze_event_handle_t signal, uint32_t wait_count,
                                                    ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(to);
    auto run = [to] {
      const uint64_t now = now_ns();
      std::memcpy(host_view(to, sizeof now, "timestamp"), &now, sizeof now);
    };
    return append(*list, run, signal, wait_count, waits);
  });
}

ze_result_t zeCommandListAppendQueryKernelTimestamps(ze_command_list_handle_t handle,
                                                     uint32_t count, ze_event_handle_t* events,
                                                     void* to, const size_t* offsets,
                                                     ze_event_handle_t signal, uint32_t wait_count,
                                                     ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(events);
    require(to);
    std::vector<std::shared_ptr<Event>> sources;
    std::vector<size_t> places;
    for (uint32_t i = 0; i < count; ++i) {
      sources.push_back(get<Event>(events[i]));
      places.push_back(offsets == nullptr ? i * sizeof(ze_kernel_timestamp_result_t) : offsets[i]);
    }
    auto run = [=] {
      for (size_t i = 0; i < sources.size(); ++i) {
        const Signal& s = *sources[i]->signal;
        const ze_kernel_timestamp_result_t value{{s.start, s.end}, {s.start, s.end}};
        std::memcpy(host_view(static_cast<uint8_t*>(to) + places[i], sizeof value, "timestamps"),
                    &value, sizeof value);
      }
    };
    return append(*list, std::move(run), signal, wait_count, waits);
  });
}

}  // extern "C"
#pragma GCC visibility pop

// Events, their pools and timestamps, fences.
#include "driver/objects.hpp"
#include "driver/scheduler.hpp"

using namespace xesim::driver;

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeEventPoolCreate(ze_context_handle_t context, const ze_event_pool_desc_t* desc,
                              uint32_t, ze_device_handle_t*, ze_event_pool_handle_t* out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    require(out);
    if (desc->count == 0) refuse(ZE_RESULT_ERROR_INVALID_SIZE);
    auto pool = std::make_shared<EventPool>();
    pool->count = desc->count;
    for_each_extension(desc->pNext, [&](Extensible& e) {
      pool->counter_based |= e.stype == ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC;
    });
    return new_handle(std::move(pool), out);
  });
}

ze_result_t zeEventPoolDestroy(ze_event_pool_handle_t pool) {
  return guarded([&] { remove<EventPool>(pool); });
}

ze_result_t zeEventPoolGetIpcHandle(ze_event_pool_handle_t, ze_ipc_event_pool_handle_t*) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
ze_result_t zeEventPoolOpenIpcHandle(ze_context_handle_t, ze_ipc_event_pool_handle_t,
                                     ze_event_pool_handle_t*) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
ze_result_t zeEventPoolCloseIpcHandle(ze_event_pool_handle_t) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

ze_result_t zeEventCreate(ze_event_pool_handle_t pool_handle, const ze_event_desc_t* desc,
                          ze_event_handle_t* out) {
  return guarded([&] {
    const auto pool = get<EventPool>(pool_handle);
    require(desc);
    require(out);
    if (desc->index >= pool->count) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    auto event = std::make_shared<Event>();
    event->counter_based = pool->counter_based;
    event->signal->done =
        pool->counter_based;  // nothing to wait for until a command is appended with it
    return new_handle(std::move(event), out);
  });
}

ze_result_t zeEventDestroy(ze_event_handle_t event) {
  return guarded([&] { remove<Event>(event); });
}

ze_result_t zeEventHostSignal(ze_event_handle_t event) {
  return guarded([&] { Scheduler::instance().host_set(*get<Event>(event), true); });
}

ze_result_t zeEventHostReset(ze_event_handle_t handle) {
  return guarded([&] {
    const auto event = get<Event>(handle);
    if (!event->counter_based) Scheduler::instance().host_set(*event, false);
  });
}

ze_result_t zeEventHostSynchronize(ze_event_handle_t event, uint64_t timeout) {
  return guarded([&] { return Scheduler::instance().wait(*get<Event>(event), timeout); });
}

ze_result_t zeEventQueryStatus(ze_event_handle_t event) { return zeEventHostSynchronize(event, 0); }

ze_result_t zeEventQueryKernelTimestamp(ze_event_handle_t handle,
                                        ze_kernel_timestamp_result_t* out) {
  return guarded([&] {
    const auto event = get<Event>(handle);
    require(out);
    ze_result_t result = ZE_RESULT_SUCCESS;
    Scheduler::instance().exclusively([&] {
      const Signal& signal = *event->signal;
      if (!signal.done) {
        result = ZE_RESULT_NOT_READY;
        return;
      }
      out->global.kernelStart = out->context.kernelStart = signal.start;
      out->global.kernelEnd = out->context.kernelEnd = signal.end;
    });
    return result;
  });
}

ze_result_t zeFenceCreate(ze_command_queue_handle_t queue, const ze_fence_desc_t* desc,
                          ze_fence_handle_t* out) {
  return guarded([&] {
    const auto owner = get<Queue>(queue);
    require(desc);
    require(out);
    auto fence = std::make_shared<Fence>();
    fence->signal->done = (desc->flags & ZE_FENCE_FLAG_SIGNALED) != 0;
    fence->signal->device = owner->stream->device;
    return new_handle(std::move(fence), out);
  });
}

ze_result_t zeFenceDestroy(ze_fence_handle_t fence) {
  return guarded([&] { remove<Fence>(fence); });
}

ze_result_t zeFenceHostSynchronize(ze_fence_handle_t fence, uint64_t timeout) {
  return guarded([&] { return Scheduler::instance().wait(get<Fence>(fence)->signal, timeout); });
}

ze_result_t zeFenceQueryStatus(ze_fence_handle_t fence) { return zeFenceHostSynchronize(fence, 0); }

ze_result_t zeFenceReset(ze_fence_handle_t handle) {
  return guarded([&] {
    const auto fence = get<Fence>(handle);
    Scheduler::instance().exclusively([&] { fence->signal->done = false; });
  });
}

}  // extern "C"
#pragma GCC visibility pop

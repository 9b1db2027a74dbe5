// Command lists and queues.
#include "driver/append.hpp"
#include "driver/scheduler.hpp"

using namespace xesim::driver;

namespace {

bool is_synchronous(const ze_command_queue_desc_t& desc) {
  return desc.mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
}

void check_ordinal(uint32_t ordinal) {
  if (ordinal != 0) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);  // there is one group of queues
}

std::vector<std::shared_ptr<const Command>> recorded_commands(uint32_t count,
                                                              ze_command_list_handle_t* handles) {
  if (count == 0) refuse(ZE_RESULT_ERROR_INVALID_SIZE);
  require(handles);
  std::vector<std::shared_ptr<const Command>> commands;
  for (uint32_t i = 0; i < count; ++i) {
    const auto list = get<CommandList>(handles[i]);
    if (list->stream || !list->closed) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    commands.insert(commands.end(), list->recorded.begin(), list->recorded.end());
  }
  return commands;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ze_result_t zeCommandListCreate(ze_context_handle_t context, ze_device_handle_t device,
                                const ze_command_list_desc_t* desc, ze_command_list_handle_t* out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    require(out);
    check_ordinal(desc->commandQueueGroupOrdinal);
    auto list = std::make_shared<CommandList>();
    list->device = &device_of(device);
    list->context = context;
    return new_handle(std::move(list), out);
  });
}

ze_result_t zeCommandListCreateImmediate(ze_context_handle_t context, ze_device_handle_t device,
                                         const ze_command_queue_desc_t* desc,
                                         ze_command_list_handle_t* out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    require(out);
    check_ordinal(desc->ordinal);
    auto list = std::make_shared<CommandList>();
    list->device = &device_of(device);
    list->context = context;
    list->synchronous = is_synchronous(*desc);
    list->stream = Scheduler::instance().make_stream(*list->device);
    return new_handle(std::move(list), out);
  });
}

ze_result_t zeCommandListDestroy(ze_command_list_handle_t handle) {
  return guarded([&] {
    const auto list = remove<CommandList>(handle);
    if (list->stream) Scheduler::instance().close_stream(list->stream);
  });
}

ze_result_t zeCommandListClose(ze_command_list_handle_t handle) {
  return guarded([&] { get<CommandList>(handle)->closed = true; });
}

ze_result_t zeCommandListReset(ze_command_list_handle_t handle) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    list->recorded.clear();
    list->closed = false;
  });
}

ze_result_t zeCommandListIsImmediate(ze_command_list_handle_t handle, ze_bool_t* yes) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(yes);
    *yes = list->stream != nullptr;
  });
}

ze_result_t zeCommandListGetDeviceHandle(ze_command_list_handle_t handle,
                                         ze_device_handle_t* device) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(device);
    *device = handle_of(*list->device);
  });
}

ze_result_t zeCommandListGetContextHandle(ze_command_list_handle_t handle,
                                          ze_context_handle_t* context) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    require(context);
    *context = list->context;
  });
}

ze_result_t zeCommandListHostSynchronize(ze_command_list_handle_t handle, uint64_t timeout) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    if (!list->stream) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    return Scheduler::instance().wait(list->stream, timeout);
  });
}

ze_result_t zeCommandListImmediateAppendCommandListsExp(
    ze_command_list_handle_t handle, uint32_t count, ze_command_list_handle_t* lists,
    ze_event_handle_t signal, uint32_t wait_count, ze_event_handle_t* waits) {
  return guarded([&] {
    const auto list = get<CommandList>(handle);
    if (!list->stream) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
    auto commands = recorded_commands(count, lists);
    commands.insert(commands.begin(), make_command({}, nullptr, wait_count, waits));
    commands.push_back(make_command({}, signal, 0, nullptr));
    return submit(*list, commands);
  });
}

ze_result_t zeCommandQueueCreate(ze_context_handle_t context, ze_device_handle_t device,
                                 const ze_command_queue_desc_t* desc,
                                 ze_command_queue_handle_t* out) {
  return guarded([&] {
    get<Context>(context);
    require(desc);
    require(out);
    check_ordinal(desc->ordinal);
    auto queue = std::make_shared<Queue>();
    queue->synchronous = is_synchronous(*desc);
    queue->stream = Scheduler::instance().make_stream(device_of(device));
    return new_handle(std::move(queue), out);
  });
}

ze_result_t zeCommandQueueDestroy(ze_command_queue_handle_t queue) {
  return guarded([&] { Scheduler::instance().close_stream(remove<Queue>(queue)->stream); });
}

ze_result_t zeCommandQueueExecuteCommandLists(ze_command_queue_handle_t handle, uint32_t count,
                                              ze_command_list_handle_t* lists,
                                              ze_fence_handle_t fence) {
  return guarded([&] {
    const auto queue = get<Queue>(handle);
    const auto done = fence == nullptr ? nullptr : get<Fence>(fence);
    Scheduler& scheduler = Scheduler::instance();
    scheduler.submit(queue->stream, recorded_commands(count, lists));
    if (done) scheduler.submit_signal(queue->stream, done->signal);
    return queue->synchronous ? scheduler.wait(queue->stream, UINT64_MAX) : ZE_RESULT_SUCCESS;
  });
}

ze_result_t zeCommandQueueSynchronize(ze_command_queue_handle_t queue, uint64_t timeout) {
  return guarded([&] { return Scheduler::instance().wait(get<Queue>(queue)->stream, timeout); });
}

}  // extern "C"
#pragma GCC visibility pop

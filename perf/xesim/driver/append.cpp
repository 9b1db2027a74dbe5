#include "driver/append.hpp"

#include "driver/scheduler.hpp"

namespace xesim::driver {

std::shared_ptr<Command> make_command(std::function<void()> run, ze_event_handle_t signal,
                                      uint32_t wait_count, ze_event_handle_t* waits) {
  if (wait_count != 0 && waits == nullptr) refuse(ZE_RESULT_ERROR_INVALID_SIZE);
  auto command = std::make_shared<Command>();
  command->run = std::move(run);
  for (uint32_t i = 0; i < wait_count; ++i) command->waits.push_back(get<Event>(waits[i]));
  if (signal != nullptr) command->signal = get<Event>(signal);
  return command;
}

ze_result_t submit(CommandList& list, const std::vector<std::shared_ptr<const Command>>& commands) {
  Scheduler& scheduler = Scheduler::instance();
  scheduler.submit(list.stream, commands);
  return list.synchronous ? scheduler.wait(list.stream, UINT64_MAX) : ZE_RESULT_SUCCESS;
}

ze_result_t append(CommandList& list, std::shared_ptr<const Command> command) {
  if (list.stream) return submit(list, {std::move(command)});
  if (list.closed) refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT);
  list.recorded.push_back(std::move(command));
  return ZE_RESULT_SUCCESS;
}

}  // namespace xesim::driver

// Appending commands to lists.
#pragma once

#include "driver/objects.hpp"

namespace xesim::driver {

// Checks the event handles.
std::shared_ptr<Command> make_command(std::function<void()> run, ze_event_handle_t signal,
                                      uint32_t wait_count, ze_event_handle_t* waits);

// To an immediate list's stream; waits there if the list is synchronous.
ze_result_t submit(CommandList& list, const std::vector<std::shared_ptr<const Command>>& commands);

// To any list: runs it, or records it.
ze_result_t append(CommandList& list, std::shared_ptr<const Command> command);

inline ze_result_t append(CommandList& list, std::function<void()> run, ze_event_handle_t signal,
                          uint32_t wait_count, ze_event_handle_t* waits) {
  return append(list, make_command(std::move(run), signal, wait_count, waits));
}

}  // namespace xesim::driver

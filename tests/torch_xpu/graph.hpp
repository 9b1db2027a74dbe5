// What records a graph. Kernels and copies of the device are its nodes; what the CPU computes, each
// replay does between two parts of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace torch_xpu {

// Whether the current stream records.
bool is_recording();
void at_replay(std::function<void()> work);

// The same memory, which the graph's pool keeps and may use again.
at::Tensor unowned(const at::Tensor& t);

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void record_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace torch_xpu

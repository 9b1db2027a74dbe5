// torch._C._XPUGraph, and operators of the CPU in it.
#include "graph.hpp"

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/xpu/XPUCachingAllocator.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <set>
#include <variant>
#include <vector>

namespace torch_xpu {
namespace {
namespace py = pybind11;
namespace syclexp = sycl::ext::oneapi::experimental;
namespace memory = c10::xpu::XPUCachingAllocator;
using namespace c10::xpu;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

class Graph;
std::vector<Graph*>& recording() {
  static auto& all = *new std::vector<Graph*>;
  return all;
}

// Records the current stream; its memory is of a pool, which it may share.
class Graph {
 public:
  explicit Graph(bool keep) : keep_(keep) {}
  ~Graph() { reset(); }

  void begin(std::optional<MempoolId_t> pool) {
    TORCH_CHECK(parts_.empty(), "a graph records once");
    device_ = current_device();
    queue_ = &getCurrentXPUStream().queue();
    pool_ = pool.value_or(MemPool::graph_pool_handle(false));
    memory::beginAllocateToPool(device_, pool_,
                                [mine = queue_](auto* queue) { return queue == mine; });
    at::getHostAllocator(c10::kXPU)->begin_allocate_to_pool(pool_, [mine = queue_](c10::Stream s) {
      return s.device_type() == c10::kXPU && &XPUStream(s).queue() == mine;
    });
    recording().push_back(this);
    begin_part();
  }
  void end() {
    end_part();
    std::erase(recording(), this);
    memory::endAllocateToPool(device_, pool_);
    at::getHostAllocator(c10::kXPU)->end_allocate_to_pool(pool_);
    if (!keep_) instantiate();
  }
  void at_replay(std::function<void()> work) {
    end_part();
    parts_.emplace_back(std::move(work));
    begin_part();
  }
  void instantiate() {
    for (Part& part : parts_) {
      if (auto* recorded = std::get_if<Recorded>(&part)) part = recorded->finalize();
    }
  }
  void replay() {
    instantiate();
    const c10::DeviceGuard guard({c10::kXPU, device_});
    sycl::queue& queue = getCurrentXPUStream().queue();
    used_.insert(&queue);
    for (Part& part : parts_) {
      if (auto* executable = std::get_if<Executable>(&part)) {
        queue.ext_oneapi_graph(*executable);
      } else {
        std::get<std::function<void()>>(part)();
      }
    }
  }
  MempoolId_t pool() const { return pool_; }
  void reset() {
    if (parts_.empty()) return;
    for (auto* queue : used_) queue->wait_and_throw();
    parts_.clear();
    memory::releasePool(device_, pool_);
    at::getHostAllocator(c10::kXPU)->release_pool(pool_);
  }

  bool records(const sycl::queue& queue) const { return queue_ == &queue; }

 private:
  using Recorded = syclexp::command_graph<syclexp::graph_state::modifiable>;
  using Executable = syclexp::command_graph<syclexp::graph_state::executable>;
  using Part = std::variant<Recorded, Executable, std::function<void()>>;

  void begin_part() {
    Recorded part(queue_->get_context(), queue_->get_device());
    part.begin_recording(*queue_);
    parts_.emplace_back(std::move(part));
  }
  void end_part() { std::get<Recorded>(parts_.back()).end_recording(*queue_); }

  bool keep_;
  c10::DeviceIndex device_ = 0;
  sycl::queue* queue_ = nullptr;
  MempoolId_t pool_{};
  std::vector<Part> parts_;
  std::set<sycl::queue*> used_;  // by replays
};

// ---- operators of the CPU ----------------------------------------------------------------------

template <class Change>
IValue with_tensors(const IValue& value, const Change& change) {
  const auto changed = [&](const Tensor& t) { return t.defined() ? change(t) : t; };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> all;
    for (const Tensor& t : value.toTensorVector()) all.push_back(changed(t));
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (const auto& t : value.toOptionalTensorVector()) {
      all.push_back(t ? std::optional<Tensor>(changed(*t)) : t);
    }
    return all;
  }
  return value;
}

template <class Change>
Stack with_tensors(const Stack& values, const Change& change) {
  Stack all;
  for (const IValue& value : values) all.push_back(with_tensors(value, change));
  return all;
}

Tensor on_meta(const Tensor& t) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
}

// The argument that a result is, if it is one.
const IValue* written(const c10::FunctionSchema& schema, size_t result, const Stack& arguments) {
  const auto* alias = schema.returns()[result].alias_info();
  if (!alias || !alias->isWrite()) return nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other && *other == *alias) return &arguments[i];
  }
  return nullptr;
}

}  // namespace

bool is_recording() { return device_count() > 0 && getCurrentXPUStream().is_capturing(); }

void at_replay(std::function<void()> work) {
  const sycl::queue& queue = getCurrentXPUStream().queue();
  for (Graph* graph : recording()) {
    if (graph->records(queue)) return graph->at_replay(std::move(work));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "an operator of the CPU in a graph must be on the stream that it records");
}

Tensor unowned(const Tensor& t) {
  if (!t.is_xpu()) return t;
  Tensor same = at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options());
  same._set_neg(t.is_neg());
  same._set_conj(t.is_conj());
  return same;
}

// Nothing is computed now; torch's shape functions say what the results are.
void record_call(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  Stack shapes = with_tensors(arguments, on_meta);
  for (IValue& value : shapes) {
    if (value.isDevice()) value = c10::Device(c10::kMeta);
  }
  op.callBoxed(&shapes);
  Stack results;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const IValue* argument = written(schema, i, arguments);
    if (!argument) {
      results.push_back(with_tensors(shapes[i], [](const Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kXPU));
      }));
      continue;
    }
    results.push_back(*argument);
    if (shapes[i].isTensor()) argument->toTensor().resize_(shapes[i].toTensor().sizes());
  }
  at_replay([op, from = with_tensors(arguments, unowned), to = with_tensors(results, unowned)] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Stack values = from;
    on_cpu(op, &values);
    for (size_t i = 0; i < to.size(); ++i) {
      if (written(op.schema(), i, from)) continue;
      if (to[i].isTensor()) {
        to[i].toTensor().copy_(values[i].toTensor());
        continue;
      }
      const auto targets = to[i].toTensorVector(), sources = values[i].toTensorVector();
      for (size_t j = 0; j < targets.size(); ++j) targets[j].copy_(sources[j]);
    }
  });
  for (IValue& result : results) stack->push_back(std::move(result));
}

void define_graphs(py::module_& m) {
  m.def("_xpu_isCurrentStreamCapturing", &is_recording);
  m.def("_xpu_graph_pool_handle", [] { return MemPool::graph_pool_handle(); });
  py::class_<Graph>(m, "_XPUGraph")
      .def(py::init<bool>(), py::arg("keep_graph") = false)
      .def("capture_begin", &Graph::begin, py::arg("pool") = py::none())
      .def("capture_end", &Graph::end)
      .def("instantiate", &Graph::instantiate)
      .def("replay", &Graph::replay)
      .def("pool", &Graph::pool)
      .def("reset", &Graph::reset);
}

}  // namespace torch_xpu

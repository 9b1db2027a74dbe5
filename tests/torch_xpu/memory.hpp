// What a graph needs of the allocator.
#pragma once

#include <cstdint>
#include <sycl/sycl.hpp>

namespace torch_xpu {

// From begin to end what `queue` allocates belongs to a graph: it stays until it is released.
uint64_t begin_graph_memory(sycl::queue& queue);
void end_graph_memory(sycl::queue& queue);
void release_graph_memory(uint64_t graph);

}  // namespace torch_xpu

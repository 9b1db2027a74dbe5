// All that the Xe backend has of SYCL and of the C++ library. It depends on no choice of a kernel,
// so that a process parses it once: the text of a kernel begins with it, and the compiler keeps
// (--auto-pch) what stands there before the first declaration.
#pragma once

#include <concepts>
#include <cstdint>
#include <sycl/ext/intel/esimd.hpp>
#include <sycl/ext/intel/esimd/xmx/dpas.hpp>
#include <sycl/ext/intel/experimental/fp_control_kernel_properties.hpp>
#include <sycl/ext/intel/experimental/grf_size_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/kernel_properties/properties.hpp>
#include <type_traits>
#include <utility>

// All headers of SYCL and of the C++ library that the Xe backend uses. They depend on no choice of
// a kernel, so a process parses them only once: the source of every kernel begins with this file,
// and the compiler keeps (--auto-pch) what comes before the first declaration.
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

// Native code of the SYCL CPU device, through OpenCL.
#include <dlfcn.h>

#include <stdexcept>
#include <sycl/backend.hpp>

#include "host/device/native.hpp"

namespace xeflash::opencl {
namespace {

namespace syclexp = sycl::ext::oneapi::experimental;

// The functions of the OpenCL loader that the SYCL runtime uses itself.
template <class Function>
Function* function_of(const char* name) {
  static void* library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) throw std::runtime_error(std::string("libOpenCL.so.1 has no ") + name);
  return reinterpret_cast<Function*>(function);
}
#define XF_OPENCL(name) function_of<decltype(name)>(#name)

void check(cl_int status, const char* what) {
  if (status != CL_SUCCESS)
    throw std::runtime_error(std::string(what) + " failed with OpenCL error " +
                             std::to_string(status));
}

}  // namespace

std::string native_binary(const sycl::kernel& kernel) {
  const cl_kernel native = sycl::get_native<sycl::backend::opencl>(kernel);
  cl_program program = nullptr;
  check(XF_OPENCL(clGetKernelInfo)(native, CL_KERNEL_PROGRAM, sizeof(program), &program, nullptr),
        "clGetKernelInfo");
  size_t size = 0;
  check(XF_OPENCL(clGetProgramInfo)(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr),
        "clGetProgramInfo");
  std::string binary(size, '\0');
  char* data = binary.data();
  check(XF_OPENCL(clGetProgramInfo)(program, CL_PROGRAM_BINARIES, sizeof(data), &data, nullptr),
        "clGetProgramInfo");
  check(XF_OPENCL(clReleaseKernel)(native), "clReleaseKernel");  // get_native retained it
  return binary;
}

std::string build_native(const sycl::queue& queue, const std::string& spirv,
                         const std::string& kernel) {
  const auto* bytes = reinterpret_cast<const std::byte*>(spirv.data());
  const std::vector<std::byte> content(bytes, bytes + spirv.size());
  auto bundle = syclexp::create_kernel_bundle_from_source(queue.get_context(),
                                                          syclexp::source_language::spirv, content);
  return native_binary(
      syclexp::build(bundle, {queue.get_device()}).ext_oneapi_get_kernel(kKernelPrefix + kernel));
}

sycl::kernel load_native(const sycl::queue& queue, const std::string& binary,
                         const std::string& name) {
  const cl_context context = sycl::get_native<sycl::backend::opencl>(queue.get_context());
  const cl_device_id device = sycl::get_native<sycl::backend::opencl>(queue.get_device());
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS, error = CL_SUCCESS;
  const cl_program program =
      XF_OPENCL(clCreateProgramWithBinary)(context, 1, &device, &size, &data, &status, &error);
  if (error == CL_SUCCESS) error = status;
  if (error == CL_SUCCESS)
    error = XF_OPENCL(clBuildProgram)(program, 1, &device, "", nullptr, nullptr);
  if (error != CL_SUCCESS) {
    throw RefusedBinary("the OpenCL driver refuses a compiled kernel with error " +
                        std::to_string(error));
  }
  const cl_kernel kernel =
      XF_OPENCL(clCreateKernel)(program, (kKernelPrefix + name).c_str(), &error);
  check(error, "clCreateKernel");
  return sycl::make_kernel<sycl::backend::opencl>(kernel, queue.get_context());
}

}  // namespace xeflash::opencl

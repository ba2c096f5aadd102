#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/installed_module.h"
#include "base/open_library.h"
#include "kernels/cuda/module_entry.h"
#include "kernels/device.h"

namespace ftrun {

namespace {

/// Module holds the entry points of libftrun_cuda.so.
struct Module {
  CudaModuleEntry open;
  CudaCountEntry count;
};

Module load_module() {
  const std::string path =
      installed_module_path(reinterpret_cast<const void*>(&open_cuda_kernels), "libftrun_cuda.so");
  const auto [module, why] = open_library(path, RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    throw Error(
        ExitCode::kEnvironment, cat("the CUDA kernels cannot be loaded: ", why),
        "build ftrun again on this machine (it needs cuBLAS and the CUDA runtime of version "
        "13), or set device: cpu");
  const Module entries{reinterpret_cast<CudaModuleEntry>(::dlsym(module, kCudaModuleEntry)),
                       reinterpret_cast<CudaCountEntry>(::dlsym(module, kCudaCountEntry))};
  if (entries.open == nullptr || entries.count == nullptr)
    throw Error(ExitCode::kEnvironment, cat(path, " is not this version's CUDA library"),
                "install or build ftrun again, all parts of one version");
  return entries;
}

const Module& module() {
  static const Module loaded = load_module();
  return loaded;
}

}  // namespace

std::unique_ptr<DeviceKernels> open_cuda_kernels(int index, const AttentionOptions& attention) {
  return std::unique_ptr<DeviceKernels>(module().open(index, attention));
}

int count_cuda_devices() {
  return module().count();
}

}  // namespace ftrun

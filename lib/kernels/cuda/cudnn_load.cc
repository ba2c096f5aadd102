#include <dlfcn.h>

#include "base/error.h"
#include "kernels/cuda/cudnn_api.h"

namespace ftrun::cuda {

namespace {

constexpr const char* kLibrary = "libcudnn.so.9";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(
      ExitCode::kEnvironment, cat("cuDNN cannot compute attention: ", why),
      "install cuDNN 9 (nvidia-cudnn-cu13) in the Python environment that has LibTorch, or set "
      "kernels.attention: own");
}

template <class Function>
void load_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) refuse(cat(kLibrary, " has no ", name));
}

CudnnApi load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(cat("it cannot be loaded: ", ::dlerror()));
  CudnnApi api;
  load_symbol(library, "cudnnGetVersion", api.version);
  load_symbol(library, "cudnnGetErrorString", api.error_string);
  load_symbol(library, "cudnnGetLastErrorString", api.last_error);
  load_symbol(library, "cudnnCreate", api.create);
  load_symbol(library, "cudnnDestroy", api.destroy);
  load_symbol(library, "cudnnSetStream", api.set_stream);
  load_symbol(library, "cudnnBackendCreateDescriptor", api.create_descriptor);
  load_symbol(library, "cudnnBackendDestroyDescriptor", api.destroy_descriptor);
  load_symbol(library, "cudnnBackendFinalize", api.finalize);
  load_symbol(library, "cudnnBackendSetAttribute", api.set_attribute);
  load_symbol(library, "cudnnBackendGetAttribute", api.get_attribute);
  load_symbol(library, "cudnnBackendExecute", api.execute);
  return api;
}

}  // namespace

const CudnnApi& load_cudnn() {
  static const CudnnApi api = load();
  return api;
}

}  // namespace ftrun::cuda

#include <dlfcn.h>

#include "base/error.h"
#include "kernels/cuda/cudnn_api.h"

namespace ftrun::cuda {

namespace {

constexpr const char* kLibrary = "libcudnn.so.9";

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ExitCode::kEnvironment, cat("cuDNN cannot compute attention: ", why),
              "install cuDNN 9 (nvidia-cudnn-cu13) beside ftrun's Python packages, or set "
              "kernels.attention to own");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) refuse(cat(kLibrary, " has no ", name));
}

CudnnApi load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(cat("it cannot be loaded: ", ::dlerror()));
  CudnnApi api;
  find(library, "cudnnGetVersion", api.version);
  find(library, "cudnnGetErrorString", api.error_string);
  find(library, "cudnnGetLastErrorString", api.last_error);
  find(library, "cudnnCreate", api.create);
  find(library, "cudnnDestroy", api.destroy);
  find(library, "cudnnSetStream", api.set_stream);
  find(library, "cudnnBackendCreateDescriptor", api.create_descriptor);
  find(library, "cudnnBackendDestroyDescriptor", api.destroy_descriptor);
  find(library, "cudnnBackendFinalize", api.finalize);
  find(library, "cudnnBackendSetAttribute", api.set_attribute);
  find(library, "cudnnBackendGetAttribute", api.get_attribute);
  find(library, "cudnnBackendExecute", api.execute);
  return api;
}

}  // namespace

const CudnnApi& load_cudnn() {
  static const CudnnApi api = load();
  return api;
}

}  // namespace ftrun::cuda

#include "build_info.h"

#include "base/error.h"

namespace ftrun {

BuildInfo build_info() {
  BuildInfo info;
  info.version = FTRUN_VERSION;
  info.git_commit = FTRUN_GIT_COMMIT;
  info.compiler = cat("gcc ", __VERSION__);
  info.libtorch = FTRUN_TORCH_VERSION;
  info.cuda = FTRUN_CUDA_VERSION;
  return info;
}

std::string torch_folder_of_build() {
  return FTRUN_BUILD_TORCH;
}

std::string gpu_architectures() {
  return FTRUN_GPU_ARCHITECTURES;
}

}  // namespace ftrun

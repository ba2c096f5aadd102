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

}  // namespace ftrun

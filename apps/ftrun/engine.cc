#include "engine.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace ftrun {
namespace {

/// Beside the binary: bin/ftrun and lib/libftrun_engine.so.
std::string engine_path() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  return (binary.parent_path().parent_path() / "lib" / "libftrun_engine.so").string();
}

}  // namespace

int train_with_engine(const TrainRequest& request) {
  const std::string path = engine_path();
  void* engine = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (engine == nullptr)
    throw Error(ExitCode::kEnvironment, cat("the engine cannot be loaded: ", ::dlerror()),
                "build it with scripts/build.sh and keep .venv, which holds LibTorch, in place");
  using Entry = int (*)(const TrainRequest*);
  const auto entry = reinterpret_cast<Entry>(::dlsym(engine, "ftrun_engine_train"));
  if (entry == nullptr)
    throw Error(ExitCode::kEnvironment, cat(path, " is not this version's engine"),
                "build ftrun anew");
  return entry(&request);
}

}  // namespace ftrun

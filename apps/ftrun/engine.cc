#include "engine.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>

#include "base/as_error.h"
#include "base/dlopen_error.h"
#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "base/open_library.h"
#include "base/torch_folder.h"
#include "build_info.h"

namespace ftrun {
namespace {

using EngineEntry = int (*)(const TrainRequest*);
using BenchEntry = void (*)(const BenchRequest*, Machine*);
using CompileKernelsEntry = void (*)(const MatmulLibrary*);

bool engine_is_loaded = false;
/// The entry points of the loaded engine.
EngineEntry engine_entry = nullptr;
BenchEntry bench_entry = nullptr;
CompileKernelsEntry compile_kernels_entry = nullptr;

/// Returns the installation folder: its bin holds the program, and its lib holds the engine and the
/// modules.
std::string installation_folder() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    throw Error(
        ExitCode::kEnvironment,
        cat("the engine cannot be found next to the program: /proc/self/exe cannot be read: ",
            error.message()),
        "mount /proc in this container: mount -t proc proc /proc");
  return binary.parent_path().parent_path().string();
}

std::string library_path(const char* name) {
  return cat(installation_folder(), "/lib/", name);
}

/// Handles termination while LibTorch is being loaded. LibTorch allocates memory then, and
/// exceptions of its initializers cannot be caught.
[[noreturn]] void on_terminate_while_loading() {
  if (!is_out_of_memory(std::current_exception())) std::abort();
  std::fprintf(stderr, "ftrun: the engine cannot be loaded: out of memory\n  remedy: %s\n",
               more_memory_remedy());
  ::_exit(static_cast<int>(ExitCode::kEnvironment));
}

}  // namespace

std::string torch_folder() {
  return find_torch({build_info().libtorch, installation_folder(), torch_folder_of_build(),
                     process_environment()});
}

namespace {

void* open_engine(const std::string& path) {
  const std::terminate_handler old_handler = std::set_terminate(on_terminate_while_loading);
  // The full path is given, so that LD_LIBRARY_PATH cannot select another version.
  const LibraryHandle torch =
      open_library(torch_folder() + "/lib/libtorch_cpu.so", RTLD_NOW | RTLD_GLOBAL);
  const auto [engine, problem] =
      torch.handle == nullptr ? torch : open_library(path, RTLD_NOW | RTLD_GLOBAL);
  std::set_terminate(old_handler);
  if (engine != nullptr) return engine;
  throw Error(ExitCode::kEnvironment, cat("the engine cannot be loaded: ", problem),
              dlopen_ran_out_of_memory(problem)
                  ? more_memory_remedy()
                  : "install ftrun again together with its LibTorch; a build tree "
                    "needs its .venv, which contains LibTorch");
}

}  // namespace

std::vector<std::string> library_folders() {
  try {
    return library_folders_of(torch_folder());
  } catch (const Error&) {
    return {};  // code that needs LibTorch reports that it is missing
  }
}

bool has_cuda_module() {
  std::error_code ignored;
  return std::filesystem::exists(library_path("libftrun_cuda.so"), ignored);
}

void load_engine() {
  if (engine_entry != nullptr) return;
  const std::string path = library_path("libftrun_engine.so");
  void* const engine = open_engine(path);
  engine_is_loaded = true;
  engine_entry = reinterpret_cast<EngineEntry>(::dlsym(engine, "ftrun_engine_train"));
  bench_entry = reinterpret_cast<BenchEntry>(::dlsym(engine, "ftrun_engine_bench"));
  compile_kernels_entry =
      reinterpret_cast<CompileKernelsEntry>(::dlsym(engine, "ftrun_engine_compile_fp32_kernels"));
  if (engine_entry == nullptr || bench_entry == nullptr || compile_kernels_entry == nullptr)
    throw Error(ExitCode::kEnvironment, cat(path, " is not this version's engine"),
                "install or build ftrun again, all parts of one version");
}

void prepare_engine_for_ranks(const Config& config) {
  load_engine();
  if (config.device != DeviceKind::kCpu) return;
  try {
    const auto pinned = pinned_matmul_library(config.kernels);
    compile_kernels_entry(pinned ? &*pinned : nullptr);
  } catch (const std::exception&) {
    // A library that cannot be called or cannot multiply is reported by the ranks, which need it.
  }
}

Machine bench_with_engine(const BenchRequest& request) {
  load_engine();
  Machine machine;
  bench_entry(&request, &machine);
  return machine;
}

int train_with_engine(const TrainRequest& request) {
  load_engine();
  return engine_entry(&request);
}

int end_process(int exit_code) {
  if (!engine_is_loaded) return exit_code;
  flush_log();
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  ::_exit(exit_code);
}

}  // namespace ftrun

#include "base/matmul_library.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <span>

#include "base/dlopen_error.h"
#include "base/limit_remedies.h"
#include "base/open_library.h"

namespace ftrun {
namespace {

constexpr std::array<std::string_view, 3> kNames{"mkl", "onednn", "openblas"};
// The wheel's name first, then Debian's.
constexpr std::array<const char*, 2> kOneDnnFiles{"libdnnl.so.3", "libdnnl.so.2"};
constexpr std::array<const char*, 2> kOpenBlasFiles{"libscipy_openblas.so", "libopenblas.so.0"};

std::span<const char* const> files_of(MatmulLibrary library) {
  if (library == MatmulLibrary::kOneDnn) return kOneDnnFiles;
  return kOpenBlasFiles;
}

}  // namespace

std::string_view matmul_library_name(MatmulLibrary library) {
  return kNames[static_cast<size_t>(library)];
}

OpenedLibrary open_matmul_library(MatmulLibrary library) {
  require(library != MatmulLibrary::kMkl, "MKL is not a library of its own");
  // OpenBLAS starts threads when it is loaded. It is called on ftrun's own threads, so it needs
  // none.
  if (library == MatmulLibrary::kOpenBlas) ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  OpenedLibrary opened;
  for (const char* const file : files_of(library)) {
    const auto [handle, why] = open_library(file, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return {handle, ""};
    if (dlopen_ran_out_of_memory(why))
      throw Error(ExitCode::kEnvironment,
                  cat(matmul_library_name(library), " cannot be loaded: ", why),
                  more_memory_remedy());
    if (opened.error.empty()) opened.error = why;
  }
  return opened;
}

Error matmul_library_error(MatmulLibrary library, const std::string& why) {
  return Error(
      ExitCode::kEnvironment,
      cat("kernels.products is ", matmul_library_name(library), ", which cannot be loaded: ", why),
      "install it (scripts/setup.sh does), or set kernels.products: auto or mkl");
}

void check_matmul_library(MatmulLibrary library) {
  if (library == MatmulLibrary::kMkl) return;
  const OpenedLibrary opened = open_matmul_library(library);
  if (opened.handle == nullptr) throw matmul_library_error(library, opened.error);
}

}  // namespace ftrun

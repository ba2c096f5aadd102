#include "base/product_library.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <span>

#include "base/limit_remedies.h"
#include "base/loader_error.h"
#include "base/open_library.h"

namespace ftrun {
namespace {

constexpr std::array<std::string_view, 3> kNames{"mkl", "onednn", "openblas"};
// The wheel's name first, then Debian's.
constexpr std::array<const char*, 2> kOneDnnFiles{"libdnnl.so.3", "libdnnl.so.2"};
constexpr std::array<const char*, 2> kOpenBlasFiles{"libscipy_openblas.so", "libopenblas.so.0"};

std::span<const char* const> files_of(ProductLibrary library) {
  if (library == ProductLibrary::kOneDnn) return kOneDnnFiles;
  return kOpenBlasFiles;
}

}  // namespace

std::string_view product_library_name(ProductLibrary library) {
  return kNames[static_cast<size_t>(library)];
}

OpenedLibrary open_product_library(ProductLibrary library) {
  require(library != ProductLibrary::kMkl, "MKL is not a library of its own");
  // OpenBLAS starts threads when it is loaded. It is called on ftrun's own threads, so it needs
  // none.
  if (library == ProductLibrary::kOpenBlas) ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
  OpenedLibrary opened;
  for (const char* const file : files_of(library)) {
    const auto [handle, why] = open_library(file, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return {handle, ""};
    if (loader_lacks_memory(why))
      throw Error(ExitCode::kEnvironment,
                  cat(product_library_name(library), " cannot be loaded: ", why),
                  more_memory_remedy());
    if (opened.error.empty()) opened.error = why;
  }
  return opened;
}

Error product_library_error(ProductLibrary library, const std::string& why) {
  return Error(
      ExitCode::kEnvironment,
      cat("kernels.products is ", product_library_name(library), ", which cannot be loaded: ", why),
      "install it (scripts/setup.sh does), or set kernels.products to auto or mkl");
}

void require_product_library(ProductLibrary library) {
  if (library == ProductLibrary::kMkl) return;
  const OpenedLibrary opened = open_product_library(library);
  if (opened.handle == nullptr) throw product_library_error(library, opened.error);
}

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ftrun {

/// ProductLibrary names who multiplies matrices on a processor. MKL is inside LibTorch, the others
/// are shared libraries that may be there or not.
enum class ProductLibrary : uint8_t { kMkl, kOneDnn, kOpenBlas };

/// "mkl", "onednn", "openblas": as the config spells them.
std::string_view product_library_name(ProductLibrary library);

/// A shared library as the loader found it; with none of its names, `handle` is null and `error`
/// says why. It is never closed.
struct OpenedLibrary {
  void* handle = nullptr;
  std::string error;
};

/// Opens oneDNN or OpenBLAS for its caller alone: both bring symbols (sgemm_) that others have too.
/// The loader looks beside LibTorch's environment, then where the system has its libraries.
/// Error(kEnvironment) where memory is all that it lacks: another library in its place would
/// compute other bits.
OpenedLibrary open_product_library(ProductLibrary library);

/// Makes the error for a library that a config pins and this machine lacks: what is said of it, and
/// what to do.
Error product_library_error(ProductLibrary library, const std::string& why);
/// Throws it when the library cannot be loaded.
void require_product_library(ProductLibrary library);

}  // namespace ftrun

#include "base/matmul_library.h"

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("libraries of matrix multiplication have the names that the config uses") {
  REQUIRE(matmul_library_name(MatmulLibrary::kMkl) == "mkl");
  REQUIRE(matmul_library_name(MatmulLibrary::kOneDnn) == "onednn");
  REQUIRE(matmul_library_name(MatmulLibrary::kOpenBlas) == "openblas");
}

TEST_CASE(
    "MKL is always available; another library that cannot be loaded is reported with a remedy") {
  REQUIRE_NOTHROW(check_matmul_library(MatmulLibrary::kMkl));
  const Error error = matmul_library_error(MatmulLibrary::kOneDnn, "libdnnl.so.3: no such file");
  REQUIRE(error.code() == ExitCode::kEnvironment);
  REQUIRE(error.message() ==
          "kernels.products is onednn, which cannot be loaded: libdnnl.so.3: no such file");
  REQUIRE(error.remedy() ==
          "install it (scripts/setup.sh does), or set kernels.products: auto or mkl");
}

TEST_CASE("a library is opened, or the loader's message says why not") {
  for (const MatmulLibrary library : {MatmulLibrary::kOneDnn, MatmulLibrary::kOpenBlas}) {
    const OpenedLibrary opened = open_matmul_library(library);
    REQUIRE((opened.handle == nullptr) == !opened.error.empty());
  }
}

}  // namespace
}  // namespace ftrun

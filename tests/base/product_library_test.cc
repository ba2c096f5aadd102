#include "base/product_library.h"

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("matrix product libraries have the names that the config uses") {
  REQUIRE(product_library_name(ProductLibrary::kMkl) == "mkl");
  REQUIRE(product_library_name(ProductLibrary::kOneDnn) == "onednn");
  REQUIRE(product_library_name(ProductLibrary::kOpenBlas) == "openblas");
}

TEST_CASE(
    "MKL is always available; another library that cannot be loaded is reported with a remedy") {
  REQUIRE_NOTHROW(require_product_library(ProductLibrary::kMkl));
  const Error error = product_library_error(ProductLibrary::kOneDnn, "libdnnl.so.3: no such file");
  REQUIRE(error.code() == ExitCode::kEnvironment);
  REQUIRE(error.message() ==
          "kernels.products is onednn, which cannot be loaded: libdnnl.so.3: no such file");
  REQUIRE(error.remedy() ==
          "install it (scripts/setup.sh does), or set kernels.products to auto or mkl");
}

TEST_CASE("a library is opened, or the loader's message says why not") {
  for (const ProductLibrary library : {ProductLibrary::kOneDnn, ProductLibrary::kOpenBlas}) {
    const OpenedLibrary opened = open_product_library(library);
    REQUIRE((opened.handle == nullptr) == !opened.error.empty());
  }
}

}  // namespace
}  // namespace ftrun

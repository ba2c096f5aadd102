#include "base/product_library.h"

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("libraries of products are called as the config calls them") {
  REQUIRE(product_library_name(ProductLibrary::kMkl) == "mkl");
  REQUIRE(product_library_name(ProductLibrary::kOneDnn) == "onednn");
  REQUIRE(product_library_name(ProductLibrary::kOpenBlas) == "openblas");
}

TEST_CASE("MKL is always there; another library that cannot be loaded is told with a remedy") {
  REQUIRE_NOTHROW(require_product_library(ProductLibrary::kMkl));
  const Error error = product_library_error(ProductLibrary::kOneDnn, "libdnnl.so.3: no such file");
  REQUIRE(error.code() == ExitCode::kEnvironment);
  REQUIRE(error.message() ==
          "kernels.products is onednn, which cannot be loaded: libdnnl.so.3: no such file");
  REQUIRE(error.remedy() ==
          "install it (scripts/setup.sh does), or set kernels.products to auto or mkl");
}

TEST_CASE("a library is opened, or its loader's words say why not") {
  for (const ProductLibrary library : {ProductLibrary::kOneDnn, ProductLibrary::kOpenBlas}) {
    const OpenedLibrary opened = open_product_library(library);
    REQUIRE((opened.handle == nullptr) == !opened.error.empty());
  }
}

}  // namespace
}  // namespace ftrun

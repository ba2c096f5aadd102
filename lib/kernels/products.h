#pragma once

#include <optional>
#include <string>

#include "base/product_library.h"

namespace ftrun {

/// Who multiplies matrices, with versions: "openblas 0.3.34"; bf16 also "widened to fp32".
struct ProductsInUse {
  std::string fp32;
  std::string bf16;
  /// The library that the rule names for this processor and that is not there; "" when it is.
  std::string missing;
};

/// Chooses who multiplies matrices from now on in this process: the rule of kernels/cpu/products.h,
/// or `pinned`. Error(kEnvironment) when a pinned library cannot be called. Without a call it is
/// the rule.
ProductsInUse use_products(std::optional<ProductLibrary> pinned);

}  // namespace ftrun

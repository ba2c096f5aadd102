#pragma once

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/products.h"
#include "kernels/products_in_use.h"
#include "rig.h"

namespace ftrun::testing {

/// Runs `body` once with each matrix product library that this machine can use.
template <class Body>
void for_each_product_library(Body body) {
  for (const ProductLibrary library :
       {ProductLibrary::kMkl, ProductLibrary::kOneDnn, ProductLibrary::kOpenBlas}) {
    if (!has_product_library(library)) continue;
    choose_products(library);
    body(library);
  }
  choose_products(std::nullopt);
}

/// Runs for_each_dtype with each library, for tests of operations that multiply matrices.
template <class Body>
void for_each_multiplier(Body body) {
  for_each_product_library([&](ProductLibrary library) {
    for_each_dtype([&](DType dtype) {
      if (dtype != DType::kF64 || library == ProductLibrary::kMkl) body(dtype);
    });
  });
}

/// Returns the case, with the gradient of the logits rounded to bf16 if the head multiplies bf16
/// without widening.
inline OracleCase as_head_computes(OracleCase c, DType dtype) {
  c.bf16_logits_gradient = dtype == DType::kBF16 && multiplies_bf16();
  return c;
}

}  // namespace ftrun::testing

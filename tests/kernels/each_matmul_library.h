#pragma once

#include "kernels/choose_matmul_library.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_libraries.h"
#include "operation_runner.h"

namespace ftrun::testing {

/// Runs `body` once with each library of matrix multiplication that this machine can use.
template <class Body>
void for_each_matmul_library(Body body) {
  for (const MatmulLibrary library :
       {MatmulLibrary::kMkl, MatmulLibrary::kOneDnn, MatmulLibrary::kOpenBlas}) {
    if (!has_matmul_library(library)) continue;
    choose_matmul_library(library);
    body(library);
  }
  choose_matmul_library(std::nullopt);
}

/// Runs for_each_dtype with each library, for tests of operations that multiply matrices.
template <class Body>
void for_each_library_and_dtype(Body body) {
  for_each_matmul_library([&](MatmulLibrary library) {
    for_each_dtype([&](DType dtype) {
      if (dtype != DType::kF64 || library == MatmulLibrary::kMkl) body(dtype);
    });
  });
}

/// Returns the case, with the gradient of the logits rounded to bf16 if the head multiplies bf16
/// without widening.
inline OracleCase with_rounding_of_head(OracleCase c, DType dtype) {
  c.bf16_logits_gradient = dtype == DType::kBF16 && multiplies_bf16();
  return c;
}

}  // namespace ftrun::testing

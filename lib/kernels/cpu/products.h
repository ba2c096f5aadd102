#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/product_library.h"
#include "kernels/cpu/vector_kernels.h"

// A rule chooses the library that multiplies matrices only from vendor, instruction set and dtype,
// never from a measurement: one kind of processor always gives the same bits. Every library is
// called on one thread for fixed tiles of a product (gemm.h), so that nothing depends on how it
// distributes work.
namespace ftrun {

/// Processor holds the properties of a processor that the rule depends on.
struct Processor {
  /// The vendor as CPUID spells it: "GenuineIntel", "AuthenticAMD", "HygonGenuine".
  std::string vendor;
  Isa isa = Isa::kAvx2;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
};
Processor this_processor();

/// LibrariesAtHand says which of the libraries that are not part of LibTorch can be called here.
struct LibrariesAtHand {
  bool onednn = true;
  bool openblas = true;
};

/// ProductRule says how products are computed. Products of fp64, which only tests have, use MKL.
struct ProductRule {
  ProductLibrary fp32 = ProductLibrary::kMkl;
  /// Multiplies bf16 as it is stored; absent: bf16 is widened for fp32 products.
  std::optional<ProductLibrary> bf16;
  bool operator==(const ProductRule&) const = default;
};

/// Chooses the libraries. MKL runs its AVX2 kernel on processors of other makers: where they have
/// AVX-512, whole trainings are faster by oneDNN, and where they do not, no slower by MKL
/// (docs/benchmarks.md). bf16 is multiplied as it is stored where there are instructions for it: by
/// MKL on matrix units, else by oneDNN. `pinned`: the library that multiplies, on any processor.
ProductRule product_rule(const Processor& processor, const LibrariesAtHand& at_hand,
                         std::optional<ProductLibrary> pinned = std::nullopt);

/// Returns the rule that products follow: this processor's until set_product_rule().
ProductRule product_rule_in_use();
void set_product_rule(const ProductRule& rule);

/// ProductCall is a row-major c[m,n] = op(a) op(b) + beta c on the calling thread, in BLAS's terms.
template <class S, class R>
struct ProductCall {
  bool transpose_a = false;
  bool transpose_b = false;
  int m = 0;
  int n = 0;
  int k = 0;
  const S* a = nullptr;
  int lda = 0;
  const S* b = nullptr;
  int ldb = 0;
  R beta = 0;
  R* c = nullptr;
  int ldc = 0;
};
void multiply_with(ProductLibrary library, const ProductCall<float, float>& call);
void multiply_with(ProductLibrary library, const ProductCall<double, double>& call);
/// Multiplies bf16 as it is stored, with MKL, or oneDNN on AVX-512. Subnormal numbers count as 0.
void multiply_with(ProductLibrary library, const ProductCall<BFloat16, float>& call);

/// Says whether the library can be called here; MKL always can.
bool has_product_library(ProductLibrary library);
/// Says whether it multiplies bf16 as it is stored on this processor.
bool has_bf16_products(ProductLibrary library);
/// Returns the library's name with its version: "openblas 0.3.34".
std::string describe_product_library(ProductLibrary library);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "inputs/base_weights.h"

namespace ftrun {

/// AdapterRows computes rows of scale B A, which an adapter adds to a matrix W [outputs, inputs].
struct AdapterRows {
  int64_t inputs = 0;
  int64_t rank = 0;
  double scale = 1.0;
  /// The matrix A [rank, inputs]; empty: B is zero.
  std::vector<float> a;
  /// Reads row o of B, [rank].
  std::function<void(int64_t row, std::span<float> out)> read_b = {};

  /// Computes out = columns [first, last) of row o.
  void compute_row(int64_t o, int64_t first, int64_t last, std::span<double> out) const;
};

/// Computes out[i] = L2 norm of row `begin` + i of W + scale B A. `to_layer_values`, if given,
/// converts elements of W to the values that layers read. The function sums in double, so that the
/// order of the sum changes no bit of the fp32 result, and reads a few rows of W at a time.
void compute_row_norms(BaseWeights& base, const std::string& weight, const AdapterRows& adapter,
                       int64_t begin, std::span<double> out,
                       const std::function<void(std::span<float>)>& to_layer_values = {});

}  // namespace ftrun

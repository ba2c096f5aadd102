#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/base_weights.h"

namespace ftrun {

/// Rows of scale B A, which an adapter adds to a matrix W [outputs, inputs]. Inline, as BaseWeights
/// is.
struct AdapterRows {
  int64_t inputs = 0;
  int64_t rank = 0;
  double scale = 1.0;
  /// A [rank, inputs]; empty: B is zero.
  std::vector<float> a;
  /// Reads row o of B, [rank].
  std::function<void(int64_t row, std::span<float> out)> read_b = {};

  /// out = columns [first, last) of row o.
  void read(int64_t o, int64_t first, int64_t last, std::span<double> out) const {
    std::fill(out.begin(), out.end(), 0.0);
    if (a.empty()) return;
    std::vector<float> b(static_cast<size_t>(rank));
    read_b(o, b);
    for (int64_t k = 0; k < rank; ++k)
      for (int64_t i = first; i < last; ++i)
        out[static_cast<size_t>(i - first)] +=
            scale * static_cast<double>(b[static_cast<size_t>(k)]) * static_cast<double>(a[static_cast<size_t>(k * inputs + i)]);
  }
};

/// out[i] = length of row `begin` + i of W + scale B A. `as_read`, if any, makes of elements of W
/// what layers read of them. In double, so that the sum's order shows in no bit of fp32; some rows
/// of W at a time.
inline void row_lengths(BaseWeights& base, const std::string& weight, const AdapterRows& adapter, int64_t begin, std::span<double> out,
                        const std::function<void(std::span<float>)>& as_read = {}) {
  constexpr int64_t kPart = int64_t{1} << 18;
  const int64_t inputs = adapter.inputs, at_once = std::max<int64_t>(1, kPart / inputs), all = static_cast<int64_t>(out.size());
  std::vector<float> rows;
  std::vector<double> delta(static_cast<size_t>(inputs));
  for (int64_t first = 0; first < all; first += at_once) {
    const int64_t last = std::min(all, first + at_once);
    rows.resize(static_cast<size_t>((last - first) * inputs));
    base.read(weight, (begin + first) * inputs, (begin + last) * inputs, rows);
    if (as_read) as_read(rows);
    for (int64_t o = first; o < last; ++o) {
      adapter.read(begin + o, 0, inputs, delta);
      const float* const w = rows.data() + (o - first) * inputs;
      double squares = 0;
      for (size_t i = 0; i < delta.size(); ++i) {
        const double sum = static_cast<double>(w[i]) + delta[i];
        squares += sum * sum;
      }
      out[static_cast<size_t>(o)] = std::sqrt(squares);
    }
  }
}

}  // namespace ftrun

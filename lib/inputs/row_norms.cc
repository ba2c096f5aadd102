#include "inputs/row_norms.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ftrun {

void AdapterRows::compute_row(int64_t o, int64_t first, int64_t last, std::span<double> out) const {
  std::fill(out.begin(), out.end(), 0.0);
  if (a.empty()) return;
  std::vector<float> b(static_cast<size_t>(rank));
  read_b(o, b);
  for (int64_t k = 0; k < rank; ++k)
    for (int64_t i = first; i < last; ++i)
      out[static_cast<size_t>(i - first)] +=
          scale * static_cast<double>(b[static_cast<size_t>(k)]) *
          static_cast<double>(a[static_cast<size_t>(k * inputs + i)]);
}

void compute_row_norms(BaseWeights& base, const std::string& weight, const AdapterRows& adapter,
                       int64_t begin, std::span<double> out,
                       const std::function<void(std::span<float>)>& to_layer_values) {
  constexpr int64_t kElementsAtOnce = int64_t{1} << 18;
  const int64_t inputs = adapter.inputs,
                rows_at_once = std::max<int64_t>(1, kElementsAtOnce / inputs),
                row_count = static_cast<int64_t>(out.size());
  std::vector<float> rows;
  std::vector<double> delta(static_cast<size_t>(inputs));
  for (int64_t first = 0; first < row_count; first += rows_at_once) {
    const int64_t last = std::min(row_count, first + rows_at_once);
    rows.resize(static_cast<size_t>((last - first) * inputs));
    base.read(weight, (begin + first) * inputs, (begin + last) * inputs, rows);
    if (to_layer_values) to_layer_values(rows);
    for (int64_t o = first; o < last; ++o) {
      adapter.compute_row(begin + o, 0, inputs, delta);
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

#pragma once

#include <random>
#include <vector>

#include "base/error.h"
#include "graph/builder.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/scale/scale.h"

namespace ftrun::testing {

/// Makes a random graph of `steps` operations or groups of operations on values of [N,D]: linears,
/// norms, residual norms, additions, scalings and gated products. Each value is read, or added to
/// the single output.
inline LayerGraph random_graph(std::mt19937_64& random, int steps,
                               const RecomputePolicy& recompute = {}) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const int64_t n = 4 * static_cast<int64_t>(1 + below(6));
  const int64_t d = static_cast<int64_t>(1 + below(40));
  GraphBuilder g("random", n, 4);
  std::vector<ValueId> values{g.input(Port::kHidden, DType::kF32, {n, d}, "x")};
  std::vector<int> readers{0};
  int params = 0;
  const auto param = [&](Dims dims) { return g.param(cat("p", params++), std::move(dims)); };
  const auto read_value = [&] {
    const size_t at = below(values.size());
    ++readers[at];
    return values[at];
  };
  const auto add_value = [&](ValueId id) {
    values.push_back(id);
    readers.push_back(0);
  };
  for (int i = 0; i < steps; ++i) {
    const auto width = static_cast<int64_t>(1 + below(30));
    switch (below(6)) {
      case 0:
        add_value(ops::rms_norm(g, read_value(), param({d}), {1e-5}));
        break;
      case 1:
        add_value(ops::linear(g, read_value(), param({d, d}), below(2) ? param({d}) : -1));
        break;
      case 2:
        add_value(ops::add(g, read_value(), read_value()));
        break;
      case 4:
        add_value(ops::scale(g, read_value(), -0.5));
        break;
      case 3:
        add_value(ops::linear(
            g,
            ops::gated_activation(g, ops::linear(g, read_value(), param({2 * width, d})),
                                  Activation::kSilu),
            param({d, width})));
        break;
      default: {
        const auto [sum, norm] =
            ops::add_rms_norm(g, read_value(), read_value(), param({d}), {1e-5});
        add_value(sum);
        add_value(norm);
      }
    }
  }
  ValueId total = -1;
  for (size_t i = 0; i < values.size(); ++i)
    if (readers[i] == 0) total = total < 0 ? values[i] : ops::add(g, total, values[i]);
  g.output(ops::add(g, total, ops::linear(g, total, param({d, d}))), Port::kHidden);
  return g.finish(true, recompute);
}

}  // namespace ftrun::testing

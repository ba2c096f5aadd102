#pragma once

#include <cstdint>
#include <vector>

#include "graph/op.h"
#include "ops/linear/linear.h"

namespace ftrun {

class GraphBuilder;
struct LayerGraph;

// lora_up
//   Low-rank adapters (Hu et al. 2021, "LoRA") of up to three parts of a linear layer's results y
//   (LoraAttrs): part p has O_p neighboring columns of y, rank r_p, and the next r_p columns of
//   h = x a^T (a linear); J = r_1 + r_2 + r_3.
//   in:  y[N,O], h[N,J], b_1[O_1,r_1], [b_2], [b_3]
//   out: y, to part p of which scale_p h_p b_p^T is added (out may be in)
// lora_up_dgrad
//   in:  dy[N,O], b_1[O_1,r_1], [b_2], [b_3]
//   out: dh[N,J]: dh_p = scale_p dy_p b_p
// lora_up_wgrad
//   in:  dy[N,O], h[N,J]
//   out: db_1[O_1,r_1], [db_2], [db_3]: db_p = scale_p dy_p^T h_p

/// LoraAttrs holds the attributes of the low-rank adapters of one linear layer: the parts that have
/// an adapter, with their columns.
struct LoraAttrs {
  struct AdaptedColumns {
    /// The column where the part begins in a row of the linear layer's results.
    int64_t first_column = 0;
    double scale = 1.0;
    bool operator==(const AdaptedColumns&) const = default;
  };
  std::vector<AdaptedColumns> parts;
  bool operator==(const LoraAttrs&) const = default;
};

/// LoraPart is a part of a linear layer's results with a low-rank adapter: its columns of y and of
/// h.
struct LoraPart {
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_h_column = 0;
  int64_t rank = 0;
  double scale = 1.0;
};

/// Returns the parts of an operation with LoraAttrs, in their order.
std::vector<LoraPart> lora_parts(const LayerGraph& graph, const Op& op);

/// Returns the number of columns of the widest part.
int64_t max_columns(const std::vector<LoraPart>& parts);

/// Returns J, the elements of a row of h.
int64_t total_lora_rank(const std::vector<LoraPart>& parts);

namespace ops {
/// Adds low-rank adapters to a linear layer's results `y`: see lora_up. `down` [J,I] is applied to
/// `x`, the linear layer's operand (after dropout, where there is one); `up` holds b_p of each part
/// of `attrs`. `y_attrs` holds the attributes of the linear layer itself.
ValueId lora(GraphBuilder& g, ValueId x, ValueId y, ValueId down, const std::vector<ValueId>& up,
             const LoraAttrs& attrs, const LinearAttrs& y_attrs = {});
}  // namespace ops

}  // namespace ftrun

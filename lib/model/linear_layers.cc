#include "model/linear_layers.h"

#include <utility>

namespace ftrun {

std::vector<LinearLayer> block_linear_layers(const ModelConfig& c, const TensorSplit& split) {
  using P = Projection;
  using M = LinearMatrix;
  const TensorNames& names = tensor_names(c.family);
  const int64_t q = c.query_heads * c.head_size, kv = c.kv_heads * c.head_size;
  const int64_t d = c.hidden, f = c.feed_forward;
  const int copies = kv_copies(c, split);
  std::vector<LinearLayer> linear_layers{
      {P::kQ, M::kQkv, q, d, true, 1, c.qkv_bias},
      {P::kK, M::kQkv, kv, d, true, copies, c.qkv_bias},
      {P::kV, M::kQkv, kv, d, true, copies, c.qkv_bias},
      {P::kO, M::kAttentionOut, d, q, false, 1, c.attention_out_bias},
      {P::kGate, M::kGateUp, f, d, true, 1, c.mlp_bias},
      {P::kUp, M::kGateUp, f, d, true, 1, c.mlp_bias},
      {P::kDown, M::kDown, d, f, false, 1, c.mlp_bias}};
  if (names.rows_by_key_head) {
    const int64_t group = q / c.kv_heads, stride = group + 2 * c.head_size;
    for (LinearLayer& linear : linear_layers) {
      if (linear.matrix != M::kQkv) continue;
      linear.rows_together = linear.projection == P::kQ ? group : c.head_size;
      linear.stride = stride;
    }
  }
  std::erase_if(linear_layers,
                [&](const LinearLayer& p) { return names.linear_layer(p.projection).empty(); });
  return linear_layers;
}

TensorInfo linear_weight(const LinearLayer& linear, std::string name, const TensorSplit& split) {
  const Dims shape{linear.outputs, linear.inputs};
  return linear.is_split_by_outputs ? split_rows(std::move(name), shape, split, linear.copies)
                                    : split_columns(std::move(name), shape, split);
}

int64_t local_outputs(const LinearLayer& linear, const TensorSplit& split) {
  return linear.is_split_by_outputs ? linear.outputs * linear.copies / split.degree
                                    : linear.outputs;
}

int64_t local_inputs(const LinearLayer& linear, const TensorSplit& split) {
  return linear.is_split_by_outputs ? linear.inputs : linear.inputs / split.degree;
}

}  // namespace ftrun

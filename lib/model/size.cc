#include "model/size.h"

namespace ftrun {

ParameterCounts count_parameters(const ModelDescription& model) {
  ParameterCounts counts;
  for (const TensorInfo& tensor : model.tensors) counts.total += tensor.numel();
  for (const Layer& layer : model.layers) {
    if (layer.kind != LayerKind::kEmbedding) continue;
    for (const GraphParam& param : layer.params)
      for (TensorId id : param.tensors) counts.embedding += model.tensor(id).numel();
  }
  counts.non_embedding = counts.total - counts.embedding;
  counts.multiplied = model.tied ? counts.total : counts.non_embedding;
  return counts;
}

TrainingFlops training_flops_per_token(const ModelDescription& model) {
  const auto weights = 6.0 * static_cast<double>(count_parameters(model).multiplied);
  const auto scores =
      static_cast<double>(model.block_count) *
      static_cast<double>(model.query_heads * model.head_size) *
      static_cast<double>(model.batch.sequence_length - model.batch.sequence_padding);
  return {weights + 12.0 * scores, weights + 6.0 * scores};
}

}  // namespace ftrun

#include "axes/tensor/tensor_config.h"

#include <algorithm>

#include "axes/mesh.h"
#include "axes/tensor/split.h"
#include "base/text.h"

namespace ftrun {

TensorSplit tensor_split(const Config& config) {
  return {static_cast<int>(std::clamp<int64_t>(config.parallel.tensor, 1, INT32_MAX)), 0,
          config.parallel.sequence};
}

TensorSplit tensor_split(const Config& config, int rank) {
  TensorSplit split = tensor_split(config);
  split.index = rank_mesh(config).coordinates_of(rank).tensor;
  return split;
}

int64_t sequence_padding(const Config& config) {
  const BatchShape unpadded{config.train_micro_batch_size_per_gpu, config.data.sequence_length};
  return pad_sequence_length(unpadded, tensor_split(config)).sequence_padding;
}

std::optional<Problem> sequence_padding_notice(const Config& config) {
  const int64_t tokens = config.data.sequence_length, ranks = config.parallel.tensor;
  const int64_t padding = sequence_padding(config);
  if (padding == 0) return std::nullopt;
  return Problem{
      config.origins.position("data.sequence_length"),
      cat("sequences of ", tokens, " tokens are padded to ", tokens + padding, ", so that ", ranks,
          " tensor ranks can share them"),
      cat("set data.sequence_length to a multiple of ", ranks, ", or parallel.sequence: false"),
      Severity::kNotice};
}

}  // namespace ftrun

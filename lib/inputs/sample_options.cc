#include "inputs/sample_options.h"

#include <algorithm>
#include <cstdint>

#include "model/tensor_split.h"

namespace ftrun {

SampleSetOptions sample_options(const Config& config) {
  const DataConfig& data = config.data;
  const BatchShape given{config.train_micro_batch_size_per_gpu, data.sequence_length};
  const auto ranks = static_cast<int>(std::clamp<int64_t>(config.parallel.tensor, 1, INT32_MAX));
  SampleSetOptions options;
  options.sequence_length = data.sequence_length;
  options.row_padding = pad_rows(given, {ranks, 0, config.parallel.sequence}).row_padding;
  options.packing = data.packing;
  options.format = data.format;
  if (data.token_dtype == TokenDtype::kUint16) options.dtype = DType::kU16;
  if (data.token_dtype == TokenDtype::kUint32) options.dtype = DType::kU32;
  return options;
}

SampleSetOptions training_options(const Config& config) {
  SampleSetOptions options = sample_options(config);
  options.weights = config.data.train_weights;
  return options;
}

}  // namespace ftrun

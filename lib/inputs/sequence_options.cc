#include "inputs/sequence_options.h"

#include "axes/tensor/tensor_config.h"

namespace ftrun {

SequenceSetOptions sequence_options(const Config& config) {
  const DataConfig& data = config.data;
  SequenceSetOptions options;
  options.sequence_length = data.sequence_length;
  options.sequence_padding = sequence_padding(config);
  options.packing = data.packing;
  options.format = data.format;
  if (data.token_dtype == TokenDtype::kUint16) options.dtype = DType::kU16;
  if (data.token_dtype == TokenDtype::kUint32) options.dtype = DType::kU32;
  return options;
}

SequenceSetOptions training_options(const Config& config) {
  SequenceSetOptions options = sequence_options(config);
  options.weights = config.data.train_weights;
  return options;
}

}  // namespace ftrun

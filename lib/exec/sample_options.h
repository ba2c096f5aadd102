#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/sample_set.h"

namespace ftrun {

/// How a data set is cut into rows, as the config says. Inline: commands use it without the engine.
inline SampleSetOptions sample_options(const DataConfig& data) {
  SampleSetOptions options;
  options.sequence_length = data.sequence_length;
  options.packing = data.packing;
  options.format = data.format;
  if (data.token_dtype == TokenDtype::kUint16) options.dtype = DType::kU16;
  if (data.token_dtype == TokenDtype::kUint32) options.dtype = DType::kU32;
  return options;
}

/// Of data.train, whose data sets may be mixed.
inline SampleSetOptions training_options(const DataConfig& data) {
  SampleSetOptions options = sample_options(data);
  options.weights = data.train_weights;
  return options;
}

}  // namespace ftrun

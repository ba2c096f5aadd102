#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/hf_export.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// TrainedTensorReader reads elements [begin, end) of a trained tensor, given by its name in the
/// model, in fp32. It returns false if the tensor was not trained.
using TrainedTensorReader = std::function<bool(const std::string& tensor, int64_t begin,
                                               int64_t end, std::span<float> out)>;

/// MergeRounding is the share of an adapter that is lost by rounding to the merged model's dtype:
/// the largest share over all adapted matrices, and the module that has it.
struct MergeRounding {
  double lost_share = 0;
  std::string module;
};

/// Exports the base's weights with an adapter added. W + scale B A is computed in fp32, each row is
/// scaled to its magnitude if there are magnitudes, and the result is rounded once to the export's
/// dtype. Tensors that were trained as a whole replace those of the base. `model` describes base
/// and adapter on a single rank. Throws the errors of export_model().
MergeRounding export_merged(FileSystem& files, const ExportOptions& options,
                            const ModelDescription& model, const ModelFolder& base,
                            const TrainedTensorReader& trained);

}  // namespace ftrun

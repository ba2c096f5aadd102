#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/hf_export.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// ReadTrained reads what an adapter trained: elements [begin, end) of a tensor by the model's
/// name, in fp32; false for a tensor that it does not have.
using ReadTrained = std::function<bool(const std::string& tensor, int64_t begin, int64_t end,
                                       std::span<float> out)>;

/// MergeLoss is what rounding to the merged model's dtype takes of an adapter: the largest share
/// over all products.
struct MergeLoss {
  double share = 0;
  std::string module;
};

/// Writes the base's weights with an adapter added: W + scale B A in fp32, with magnitudes each row
/// brought to its own, rounded once to the export's dtype; tensors that were trained whole in place
/// of the base's. `model` describes base and adapter on one rank. Errors of export_model.
MergeLoss export_merged(FileSystem& files, const ExportOptions& options,
                        const ModelDescription& model, const ModelFolder& base,
                        const ReadTrained& trained);

}  // namespace ftrun

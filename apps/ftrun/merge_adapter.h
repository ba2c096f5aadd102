#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/hf_export.h"
#include "checkpoint/model_folder.h"
#include "model/description.h"

namespace ftrun {

/// ReadTrained reads a tensor that an adapter trained: elements [begin, end), by the model's name,
/// in fp32. Returns false for a tensor that the adapter does not have.
using ReadTrained = std::function<bool(const std::string& tensor, int64_t begin, int64_t end,
                                       std::span<float> out)>;

/// MergeLoss is the share of an adapter that is lost by rounding to the merged model's dtype: the
/// largest over all products.
struct MergeLoss {
  double share = 0;
  std::string module;
};

/// Writes the base's weights with an adapter added: W + scale B A in fp32, each row scaled to its
/// magnitude if there are any, rounded once to the export's dtype; tensors that were trained whole
/// replace the base's. `model` describes base and adapter on one rank. Errors of export_model.
MergeLoss export_merged(FileSystem& files, const ExportOptions& options,
                        const ModelDescription& model, const ModelFolder& base,
                        const ReadTrained& trained);

}  // namespace ftrun

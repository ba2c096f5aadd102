#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/model_folder.h"
#include "model/adapter_tensors.h"
#include "model/description.h"

namespace ftrun {

/// Lets the folder's tensors, and the parts of them that are the model's, be read by the model's
/// names; one of several ranks `tells` where the folder has others.
void name_as_model(ModelFolder& folder, const ModelDescription& model, bool tells);

/// Opens the folder of a model. Tensors that it stores under other names (find_stored_names()) are
/// read by the model's.
ModelFolder open_model_folder(const std::string& path, const ModelDescription& model);

/// Refuses a model folder whose tensors are not those of its config.json, or hold what is not
/// read as weights, with Error(kBadInput). Only headers are read; of a tied model whose folder
/// has a matrix for each end, these too.
void require_weights(const ModelDescription& model, const ModelFolder& folder);

/// Finds where an adapter's folder holds each tensor that trains in `model`, by the model's names.
/// Error(kBadInput) lists all that differs in a folder with other tensors.
std::map<std::string, AdapterTensor> require_adapter(const ModelDescription& model,
                                                     const AdapterFolder& adapter);

/// Reads elements [begin, end) of a model tensor from an adapter's folder.
void read_adapter(const AdapterFolder& adapter, const AdapterTensor& tensor, int64_t begin,
                  int64_t end, std::span<float> out);

}  // namespace ftrun

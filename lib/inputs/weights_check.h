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

/// Makes the folder's tensors, and the parts of them that are tensors of the model, readable under
/// the model's names. If `logs_notices`, logs quantized matrices, parts of a multimodal model that
/// do not train, and names that differ.
void map_to_model_names(ModelFolder& folder, const ModelDescription& model, bool logs_notices);

/// Opens the folder of a model. Tensors that the folder stores under other names
/// (find_stored_names()) are read under the model's names.
ModelFolder open_model_folder(const std::string& path, const ModelDescription& model);

/// Throws Error(kBadInput) for a model folder whose tensors are not those of its config.json, or
/// cannot be read as weights. Reads only headers, except that it also reads the embedding and the
/// head of a tied model whose folder has both.
void check_model_weights(const ModelDescription& model, const ModelFolder& folder);

/// Finds where an adapter's folder holds each tensor that trains in `model`, by the model's names.
/// Throws Error(kBadInput), which lists all differences, for a folder with other tensors.
std::map<std::string, AdapterTensor> locate_adapter_tensors(const ModelDescription& model,
                                                            const AdapterFolder& adapter);

/// Reads elements [begin, end) of a model tensor from an adapter's folder.
void read_adapter_tensor(const AdapterFolder& adapter, const AdapterTensor& tensor, int64_t begin,
                         int64_t end, std::span<float> out);

}  // namespace ftrun

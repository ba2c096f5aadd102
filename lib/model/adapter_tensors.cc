#include "model/adapter_tensors.h"

#include <set>
#include <utility>

#include "base/error.h"
#include "model/multimodal.h"

namespace ftrun {

std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model) {
  const TensorNames& names = tensor_names(model.family);
  std::set<std::string> adapted_modules;
  for (const TensorInfo& tensor : model.tensors)
    if (is_lora_name(tensor.name)) adapted_modules.insert(lora_module(tensor.file_name()));
  std::vector<AdapterTensor> tensors;
  for (const TensorInfo& tensor : model.tensors) {
    if (!tensor.trainable) continue;
    const std::string& file_name = tensor.file_name();
    const size_t dot = file_name.rfind('.');
    const std::string module = file_name.substr(0, dot);
    const bool inner = adapted_modules.contains(module) && !is_lora_name(tensor.name);
    const auto add = [&](std::string stored_name) {
      StoredLocation location = tensor.stored_location;
      if (!location.name.empty()) location.name = stored_name;
      tensors.push_back(
          {tensor.name, tensor.shape, std::move(stored_name), tensor.file_shape(), location});
    };
    const std::string in_memory =
        model.multimodal.empty() ? module : name_in_multimodal_model(module, names.root);
    add(cat(kAdapterRoot, in_memory, inner ? ".base_layer" : "", file_name.substr(dot)));
    if (model.tied && module == names.embedding)
      add(cat(kAdapterRoot, names.head, file_name.substr(dot)));
  }
  return tensors;
}

}  // namespace ftrun

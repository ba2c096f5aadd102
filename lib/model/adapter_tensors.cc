#include "model/adapter_tensors.h"

#include <set>

#include "base/error.h"

namespace ftrun {

std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model) {
  std::set<std::string> adapted;
  for (const TensorInfo& tensor : model.tensors)
    if (is_lora_name(tensor.name)) adapted.insert(lora_module(tensor.name));
  std::vector<AdapterTensor> all;
  for (const TensorInfo& tensor : model.tensors) {
    if (!tensor.trainable) continue;
    const size_t dot = tensor.name.rfind('.');
    const std::string module = tensor.name.substr(0, dot);
    const bool inner = adapted.contains(module) && !is_lora_name(tensor.name);
    all.push_back({tensor.name, cat(kAdapterRoot, module, inner ? ".base_layer" : "", tensor.name.substr(dot)), tensor.shape});
    if (model.tied && module.ends_with("embed_tokens")) all.push_back({tensor.name, cat(kAdapterRoot, "lm_head.weight"), tensor.shape});
  }
  return all;
}

}  // namespace ftrun

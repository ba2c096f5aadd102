#include "checkpoint/adapter_folder.h"

#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/weight_conversion.h"
#include "model/tensors.h"

namespace ftrun {
namespace {
constexpr std::string_view kPrefix = "base_model.model.";
}  // namespace

std::vector<AdapterTensor> adapter_tensors(const ModelDescription& model) {
  std::set<std::string> adapted;
  for (const TensorInfo& tensor : model.tensors)
    if (const size_t end = tensor.name.rfind(".lora_A."); end != std::string::npos) adapted.insert(tensor.name.substr(0, end));
  std::vector<AdapterTensor> all;
  for (const TensorInfo& tensor : model.tensors) {
    if (!tensor.trainable) continue;
    const size_t dot = tensor.name.rfind('.');
    const std::string module = tensor.name.substr(0, dot);
    const bool inner = adapted.contains(module);
    all.push_back({tensor.name, cat(kPrefix, module, inner ? ".base_layer" : "", tensor.name.substr(dot)), tensor.shape});
    if (model.tied && module.ends_with("embed_tokens")) all.push_back({tensor.name, cat(kPrefix, "lm_head.weight"), tensor.shape});
  }
  return all;
}

AdapterFolder::AdapterFolder(std::string folder) : folder_(std::move(folder)) {
  const std::string file = folder_ + "/adapter_model.safetensors";
  if (!posix_files().exists(file)) {
    const bool pickled = posix_files().exists(folder_ + "/adapter_model.bin");
    throw Error(ExitCode::kBadInput, cat(file, ": not there", pickled ? "; adapter_model.bin is a pickle, which is not read" : ""),
                pickled ? "save it again with safe_serialization=True" : "give the folder of an adapter in PEFT's layout");
  }
  file_ = std::make_unique<SafetensorsFile>(file);
}

void AdapterFolder::require_fits(const ModelDescription& model) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  stored_.clear();
  for (const AdapterTensor& wanted : adapter_tensors(model)) {
    known.insert(wanted.stored);
    const StoredTensor* stored = file_->find(wanted.stored);
    // A whole tensor beside adapters may go on from the base.
    if (stored == nullptr && !is_lora_name(wanted.tensor)) continue;
    if (stored == nullptr)
      problems.push_back(cat("tensor ", wanted.stored, " is missing; expected shape ", dims_text(wanted.shape)));
    else if (stored->shape != wanted.shape)
      problems.push_back(cat("tensor ", wanted.stored, " has shape ", dims_text(stored->shape), "; expected ", dims_text(wanted.shape)));
    else if (!is_weight_dtype(stored->dtype))
      problems.push_back(cat("tensor ", wanted.stored, " holds ", dtype_name(stored->dtype)));
    else
      stored_.emplace(wanted.tensor, wanted.stored);
  }
  for (const StoredTensor& stored : file_->tensors())
    if (!known.contains(stored.name)) problems.push_back(cat("tensor ", stored.name, " does not train in this run"));
  if (!problems.empty())
    throw Error(ExitCode::kBadInput, cat(file_->path(), ": it is not an adapter of this model and config\n  ", tensor_problems_text(problems)),
                "give the adapter's own base model as model.path and its own settings (adapter: FOLDER takes them)");
}

void AdapterFolder::read_f32(const std::string& tensor, int64_t begin, int64_t end, std::span<float> out) const {
  const StoredTensor& stored = file_->at(stored_.at(tensor));
  require(begin >= 0 && begin <= end && end <= stored.elements && static_cast<int64_t>(out.size()) == end - begin, "elements of the tensor");
  convert_to_f32(stored.dtype, file_->bytes(stored).data() + begin * dtype_bytes(stored.dtype), out);
}

}  // namespace ftrun

#include "inputs/weights_check.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/stored_location.h"
#include "checkpoint/weight_conversion.h"
#include "model/multimodal.h"
#include "model/stored_names.h"
#include "model/tensors.h"

namespace ftrun {
namespace {

/// Refuses a tied model whose folder stores a head that differs from the embedding: transformers 4
/// ties the two nevertheless, transformers 5 does not, so the folder has two meanings. If the
/// folder has both matrices, reads both to compare them.
void check_tied_matrices(const ModelDescription& model, const ModelFolder& folder) {
  const TensorNames& names = tensor_names(model.family);
  const std::string embedding = cat(names.embedding, ".weight"), head = cat(names.head, ".weight");
  if (!model.tied || folder.find(head) == nullptr) return;
  folder.check_weight_dtype(head);
  if (folder.has_equal_tensors(embedding, head)) return;
  throw Error(ExitCode::kBadInput,
              cat(folder.path(), ": config.json ties ", head, " to ", embedding,
                  ", and the weights contain both, with different values"),
              cat("to train both, write \"tie_word_embeddings\": false in config.json; to train "
                  "one matrix for both, remove ",
                  head, " from the weights"));
}

/// Describes the remedy for weights that have `problems`.
std::string weights_remedy(const ModelDescription& model, const ModelFolder& folder,
                           const std::vector<std::string>& problems, const StoredNames& names) {
  if (!names.remedy.empty()) return names.remedy;
  const TensorNames& family = tensor_names(model.family);
  const bool lacks_head = folder.find(cat(family.head, ".weight")) == nullptr;
  const bool lacks_end = lacks_head != (folder.find(cat(family.embedding, ".weight")) == nullptr);
  if (!model.tied && lacks_end && problems.size() == 1)
    return "if the model uses one matrix for embedding and head, write \"tie_word_embeddings\": "
           "true in config.json; else fetch the weights again";
  return "use the config.json and the weights of the same model";
}

/// Maps the names of PEFT's files to the names that `adapter` has instead.
std::map<std::string, std::string> map_peft_names(const std::vector<AdapterTensor>& expected,
                                                  const AdapterFolder& adapter) {
  std::vector<std::string> in_peft, stored;
  for (const AdapterTensor& tensor : expected) in_peft.push_back(tensor.stored_name);
  for (const StoredTensor& tensor : adapter.tensors()) stored.push_back(tensor.name);
  return find_stored_names(in_peft, stored, kAdapterRoot).stored_name_of;
}

}  // namespace

void map_to_model_names(ModelFolder& folder, const ModelDescription& model, bool logs_notices) {
  const StoredNames names = find_stored_names(model, folder.names());
  folder.rename(names.stored_name_of);
  for (const TensorInfo& tensor : model.tensors) {
    const StoredLocation& location = tensor.stored_location;
    if (location.name.empty() || tensor.initial.source != InitialSource::kFolder) continue;
    // check_model_weights() reports what is missing or misshapen.
    const std::vector<std::string> stored = location.names();
    const bool has_all = std::all_of(stored.begin(), stored.end(), [&](const std::string& name) {
      const StoredTensor* found = folder.find(name);
      return found && found->shape == location.shape;
    });
    if (has_all) folder.name_part(tensor.name, tensor.shape, location);
  }
  if (const size_t quantized = folder.quantized_tensors(); logs_notices && quantized > 0)
    log_notice(cat(folder.path(), ": ", quantized,
                   " of its matrices are quantized; they are read as the bf16 numbers that their "
                   "codes represent, and exported as these"));
  if (logs_notices && !model.multimodal.empty()) {
    const std::vector<std::string> stored = folder.names();
    log_notice(cat(folder.path(), ": is a ", model.multimodal, " model; its decoder is trained; ",
                   std::count_if(stored.begin(), stored.end(), is_outside_decoder),
                   " tensors of its other parts stay as they are, and are exported with it"));
  } else if (const std::string spelling = stored_name_example(model, names);
             logs_notices && !spelling.empty())
    log_notice(cat(folder.path(), ": the weights have other names than the model's (", spelling,
                   "); they are read, and exported under the model's"));
}

ModelFolder open_model_folder(const std::string& path, const ModelDescription& model) {
  ModelFolder folder(path);
  map_to_model_names(folder, model, /*logs_notices=*/true);
  return folder;
}

void check_model_weights(const ModelDescription& model, const ModelFolder& folder) {
  constexpr size_t kProblemsUnderCause = 6;
  std::vector<std::pair<std::string, Dims>> folder_tensors;
  for (const std::string& name : folder.names())
    folder_tensors.emplace_back(name, folder.at(name).shape);
  const std::vector<std::string> problems = check_tensors(model, folder_tensors);
  if (!problems.empty()) {
    const StoredNames names = find_stored_names(model, folder.names());
    throw Error(ExitCode::kBadInput,
                cat(folder.path(), ": the weights are not those of its config.json:\n  ",
                    names.cause.empty() ? tensor_problems_text(problems)
                                        : cat(names.cause, "\n  ",
                                              tensor_problems_text(problems, kProblemsUnderCause))),
                weights_remedy(model, folder, problems, names));
  }
  for (const TensorInfo& tensor : model.tensors)
    if (tensor.initial.source == InitialSource::kFolder) folder.check_weight_dtype(tensor.name);
  check_tied_matrices(model, folder);
}

std::map<std::string, AdapterTensor> locate_adapter_tensors(const ModelDescription& model,
                                                            const AdapterFolder& adapter) {
  std::map<std::string, AdapterTensor> located;
  std::vector<std::string> problems;
  std::set<std::string> expected_names;
  const std::vector<AdapterTensor> expected_tensors = adapter_tensors(model);
  const std::map<std::string, std::string> name_in_folder =
      map_peft_names(expected_tensors, adapter);
  const auto is_stored = [&](const std::string& tensor) {
    return std::any_of(
        expected_tensors.begin(), expected_tensors.end(), [&](const AdapterTensor& entry) {
          return entry.tensor == tensor && (name_in_folder.contains(entry.stored_name) ||
                                            adapter.find(entry.stored_name) != nullptr);
        });
  };
  const TensorNames& family = tensor_names(model.family);
  for (AdapterTensor expected : expected_tensors) {
    if (const auto other = name_in_folder.find(expected.stored_name); other != name_in_folder.end())
      expected.stored_name = other->second;
    // Several model tensors may be parts of one stored tensor. The first of them reports its
    // problems.
    const bool is_first = expected_names.insert(expected.stored_name).second;
    const StoredTensor* stored = adapter.find(expected.stored_name);
    if (stored == nullptr) {
      // A bias may be missing, because PEFT leaves biases out of some files. A tied matrix has two
      // names, and one of them is enough.
      if (is_first && !expected.tensor.ends_with(".bias") && !is_stored(expected.tensor))
        add_shape_problem(expected.stored_name, nullptr, expected.stored_shape, problems);
    } else if (stored->shape != expected.stored_shape) {
      if (is_first)
        add_shape_problem(expected.stored_name, &stored->shape, expected.stored_shape, problems);
    } else if (!is_weight_dtype(stored->dtype)) {
      if (is_first)
        problems.push_back(
            cat("tensor ", expected.stored_name, " holds ", dtype_name(stored->dtype)));
    } else if (const auto [first, added] = located.emplace(expected.tensor, expected);
               !added &&
               !adapter.has_equal_tensors(first->second.stored_name, expected.stored_name)) {
      problems.push_back(
          cat(last_path_part(family.embedding), " and ", last_path_part(family.head),
              " differ: PEFT trained separate copies of a tied matrix; ftrun keeps them tied"));
    }
  }
  for (const StoredTensor& stored : adapter.tensors())
    if (!expected_names.contains(stored.name))
      problems.push_back(cat("tensor ", stored.name, " does not train in this run"));
  if (!problems.empty())
    throw Error(ExitCode::kBadInput,
                cat(adapter.path(), ": it is not an adapter of this model and config\n  ",
                    tensor_problems_text(problems)),
                "give the adapter's own base model as model.path and its own settings (adapter: "
                "FOLDER takes them)");
  return located;
}

void read_adapter_tensor(const AdapterFolder& adapter, const AdapterTensor& tensor, int64_t begin,
                         int64_t end, std::span<float> out) {
  if (tensor.location.name.empty()) return adapter.read_f32(tensor.stored_name, begin, end, out);
  read_stored<float>(tensor.location, tensor.shape, begin, end, out,
                     [&](int64_t from, int64_t to, std::span<float> run) {
                       adapter.read_f32(tensor.stored_name, from, to, run);
                     });
}

}  // namespace ftrun

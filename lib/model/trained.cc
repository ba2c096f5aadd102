#include "model/trained.h"

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/pattern.h"
#include "base/text.h"
#include "model/freeze.h"
#include "ops/embedding/embedding.h"

namespace ftrun {
namespace {

/// Returns the name of a tensor without the last part: "weight", "bias".
std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

/// NamePatterns holds regular expressions that match a part of a name, and records which of them
/// matched something.
class NamePatterns {
 public:
  NamePatterns(std::string key, const std::vector<std::string>& texts,
               std::vector<std::string>& problems)
      : key_(std::move(key)), texts_(texts), used_(texts.size()) {
    for (const std::string& text : texts) {
      try {
        patterns_.push_back(compile_pattern(text));
      } catch (const Error& error) {
        problems.push_back(cat(key_, " \"", text.substr(0, 80), "\": ", error.message()));
        patterns_.emplace_back();
        used_[patterns_.size() - 1] = true;
      }
    }
  }

  bool match(const std::string& name) {
    bool any = false;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!std::regex_search(name, patterns_[i])) continue;
      used_[i] = any = true;
    }
    return any;
  }

  void report_unused(const ModelDescription& model, std::vector<std::string>& problems) const {
    const TensorNames& names = tensor_names(model.family);
    const std::string head(last_path_part(names.head));
    const std::string note =
        model.tied ? cat("; this model's output matrix is its ", last_path_part(names.embedding))
                   : "";
    for (size_t i = 0; i < texts_.size(); ++i)
      if (!used_[i])
        problems.push_back(cat(key_, " \"", texts_[i], "\": no parameter has this name",
                               texts_[i].find(head) != std::string::npos ? note : ""));
  }

 private:
  std::string key_;
  const std::vector<std::string>& texts_;
  std::vector<std::regex> patterns_;
  std::vector<bool> used_;
};

/// Lists the modules of the model that have an adapter.
std::set<std::string> adapted_modules(const ModelDescription& model) {
  std::set<std::string> modules;
  for (const TensorInfo& tensor : model.tensors)
    if (is_lora_name(tensor.name)) modules.insert(lora_module(tensor.file_name()));
  return modules;
}

/// Returns the tensors of the modules that train whole. A tied output matrix counts as the
/// embedding.
std::set<std::string> find_saved_tensors(const ModelDescription& model,
                                         const std::vector<std::string>& modules,
                                         std::vector<std::string>& problems) {
  std::set<std::string> tensors, known;
  const TensorNames& names = tensor_names(model.family);
  for (const std::string& module_to_save : modules) {
    const bool is_tied_head = model.tied && module_to_save == last_path_part(names.head);
    const std::string entry(is_tied_head ? last_path_part(names.embedding) : module_to_save);
    bool found = false;
    for (const TensorInfo& tensor : model.tensors) {
      const std::string module = module_of(tensor.file_name());
      if (is_lora_name(tensor.name) || tensor.stored_location.tensor_count > 0) continue;
      known.insert(module.substr(module.rfind('.') + 1));
      if (!module.ends_with(entry)) continue;  // as in PEFT, not only after a dot
      tensors.insert(tensor.name);
      found = true;
    }
    if (found) continue;
    problems.push_back(
        cat("modules_to_save \"", module_to_save, "\": no module has this name",
            did_you_mean(closest_match(module_to_save, {known.begin(), known.end()}))));
  }
  return tensors;
}

/// Refuses to train only a part of one matrix of the graph (q, k and v; gate and up), because its
/// gradient is computed as a whole.
void check_whole_matrices(const ModelDescription& model, const std::set<std::string>& trained,
                          std::vector<std::string>& problems) {
  std::set<std::string> reported;
  for (const Layer& layer : model.layers)
    for (const GraphParam& param : layer.params) {
      std::vector<std::string> names, frozen;
      for (const TensorId id : param.tensors) {
        // Parts of one tensor of the files are chosen together.
        const TensorInfo& tensor = model.tensor(id);
        if (!names.empty() && names.back() == tensor.file_name()) continue;
        names.push_back(tensor.file_name());
        if (!trained.contains(tensor.name)) frozen.push_back(names.back());
      }
      if (frozen.empty() || frozen.size() == names.size()) continue;
      if (reported.empty())
        problems.push_back(
            cat(join(names, ", "),
                " are one matrix here, which trains as a whole or not at all; frozen is ",
                join(frozen, ", ")));
      reported.insert(names.front());
    }
  if (reported.size() > 1) problems.push_back(cat("so it is in ", reported.size() - 1, " more"));
}

/// Refuses to train quantized matrices: small updates would not change their codes of four or eight
/// bits.
void check_not_quantized(const ModelDescription& model, const std::set<std::string>& trained,
                         std::vector<std::string>& problems) {
  constexpr size_t kMaxShown = 3;
  std::vector<std::string> names;
  for (const Layer& layer : model.layers)
    for (const GraphParam& param : layer.params)
      for (const TensorId id : param.tensors)
        if (param.quantized && trained.contains(model.tensor(id).name))
          names.push_back(model.tensor(id).name);
  if (names.empty()) return;
  const size_t unshown = names.size() - std::min(names.size(), kMaxShown);
  names.resize(std::min(names.size(), kMaxShown));
  problems.push_back(cat("quantized weights cannot train: ", join(names, ", "),
                         unshown > 0 ? cat(" and ", unshown, " more") : ""));
}

/// Returns the names of the tensors that the options choose. Expressions and modules that fit
/// nothing are problems.
std::set<std::string> choose_tensor_names(const ModelDescription& model,
                                          const TrainedTensorOptions& options,
                                          std::vector<std::string>& problems) {
  NamePatterns freeze_patterns("train.freeze", options.freeze, problems),
      only_patterns("train.only", options.only, problems);
  const std::set<std::string> saved = find_saved_tensors(model, options.modules_to_save, problems);
  const std::set<std::string> adapted = adapted_modules(model);
  const auto is_trained = [&](const TensorInfo& tensor) {
    if (!options.adapter || is_lora_name(tensor.name) || saved.contains(tensor.name)) return true;
    if (!tensor.name.ends_with(".bias") || options.bias == AdapterBias::kNone) return false;
    return options.bias == AdapterBias::kAll || adapted.contains(module_of(tensor.file_name()));
  };
  std::set<std::string> trained;
  for (const TensorInfo& tensor : model.tensors) {
    const bool frozen = freeze_patterns.match(tensor.file_name());
    const bool chosen = only_patterns.match(tensor.file_name()) || options.only.empty();
    if (is_trained(tensor) && chosen && !frozen) trained.insert(tensor.name);
  }
  freeze_patterns.report_unused(model, problems);
  only_patterns.report_unused(model, problems);
  return trained;
}

/// Refuses to train only a part of an adapter.
void check_whole_adapters(const ModelDescription& model, const std::set<std::string>& trained,
                          std::vector<std::string>& problems) {
  const bool cuts_adapter =
      std::any_of(model.tensors.begin(), model.tensors.end(), [&](const TensorInfo& tensor) {
        return is_lora_name(tensor.name) && !trained.contains(tensor.name);
      });
  if (cuts_adapter)
    problems.emplace_back("train.freeze or train.only leaves parts of an adapter out");
}

void check_any_trained(const ModelDescription&, const std::set<std::string>& trained,
                       std::vector<std::string>& problems) {
  if (trained.empty()) problems.emplace_back("no parameter is left to train");
}

/// ChoiceCheck adds problems of a choice whose names are right, and has their remedy.
struct ChoiceCheck {
  const char* remedy;
  void (*run)(const ModelDescription& model, const std::set<std::string>& trained,
              std::vector<std::string>& problems);
};

constexpr ChoiceCheck kChoiceChecks[] = {
    {"choose the modules with an adapter by exclude_modules and layers_to_transform; add "
     "\"lora_\" to train.only",
     check_whole_adapters},
    {"set train.only to parameters that are not quantized, or train an adapter on the quantized "
     "weights (adapter)",
     check_not_quantized},
    {"choose all parts of a matrix or none: an expression such as \"[qkv]_proj\" or "
     "\"(gate|up)_proj\" fits all of one",
     check_whole_matrices},
    {"remove an expression from train.freeze, or add one to train.only", check_any_trained}};

}  // namespace

ModelDescription choose_trained_tensors(ModelDescription model,
                                        const TrainedTensorOptions& options) {
  std::vector<std::string> problems;
  const std::set<std::string> trained = choose_tensor_names(model, options, problems);
  const TensorNames& names = tensor_names(model.family);
  std::string remedy = cat("use names of parameters as in the model's files (",
                           names.in_block(0, names.linear_layer(Projection::kQ)), ".weight)");
  // Choices are checked only if their names are right, and only until one check finds problems.
  for (const ChoiceCheck& check : kChoiceChecks) {
    if (!problems.empty()) break;
    check.run(model, trained, problems);
    if (!problems.empty()) remedy = check.remedy;
  }
  if (!problems.empty())
    throw Error(
        ExitCode::kUsage,
        cat("the choice of trained parameters does not fit the model\n  ", join(problems, "\n  ")),
        remedy);
  if (trained.size() == model.tensors.size()) return model;
  return freeze(std::move(model),
                [&](const TensorInfo& tensor) { return trained.contains(tensor.name); });
}

ModelDescription without_row_gradient(ModelDescription model, int64_t token) {
  for (LayerGraph& graph : model.graphs) {
    // The same kind of operation also looks up position vectors; only those that read tokens
    // change.
    const auto reads_tokens = [&](const Op& op) {
      return !op.in.empty() && graph.at(op.in[0]).port == Port::kTokens;
    };
    for (std::vector<Op>* list : {&graph.weight_grad, &graph.backward})
      for (Op& op : *list)
        if (reads_tokens(op)) leave_out_row_gradient(op, model.vocab_rows, token);
  }
  model.row_without_gradient = token;
  return model;
}

}  // namespace ftrun

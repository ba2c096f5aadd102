#include "model/trained_table.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/size.h"

namespace ftrun {
namespace {

/// ModuleInBlock holds a module's path without the number of its block, and that number; modules
/// outside of blocks have none.
struct ModuleInBlock {
  std::string name;
  std::optional<int64_t> block;
};

bool is_number(const std::string& part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Splits a module's path. `root` is the prefix of most module names.
ModuleInBlock split_module_path(const std::string& module, std::string_view root) {
  const std::vector<std::string> parts = split(module, '.');
  const auto number = std::find_if(parts.begin(), parts.end(), is_number);
  if (number == parts.end())
    return {module.starts_with(root) ? module.substr(root.size()) : module, std::nullopt};
  return {join({number + 1, parts.end()}, "."), std::stoll(*number)};
}

std::string module_of(const TensorInfo& tensor) {
  const std::string& name = tensor.file_name();
  return is_lora_name(name) ? lora_module(name) : name.substr(0, name.rfind('.'));
}

/// TrainedModules describes which parts of the modules of one name train.
struct TrainedModules {
  std::set<int64_t> blocks;
  std::set<int64_t> ranks;
  bool magnitudes = false;
  /// "weight", "bias": tensors of the model itself.
  std::set<std::string> own_tensors;
  int64_t parameters = 0;

  void add(const TensorInfo& tensor, const ModuleInBlock& module_in_block) {
    if (module_in_block.block) blocks.insert(*module_in_block.block);
    parameters += tensor.numel();
    const std::string module = module_of(tensor);
    const std::string& name = tensor.file_name();
    if (!is_lora_name(name))
      own_tensors.insert(name.substr(module.size() + 1));
    else if (name == lora_a_name(module))
      ranks.insert(tensor.shape.front());
    else
      magnitudes = magnitudes || name == lora_magnitude_name(module);
  }

  std::string method_text() const {
    std::vector<std::string> parts;
    if (!ranks.empty()) {
      const int64_t lowest = *ranks.begin(), highest = *ranks.rbegin();
      parts.push_back(cat("LoRA r ", lowest, highest > lowest ? cat(" to ", highest) : "",
                          magnitudes ? " with magnitudes" : ""));
    }
    if (own_tensors.size() == 1 && *own_tensors.begin() == "bias")
      parts.emplace_back("bias");
    else if (!own_tensors.empty())
      parts.emplace_back("whole");
    return join(parts, ", ");
  }
};

/// Returns " (not 0 to 3, 7)" for blocks below `count` that are not among `blocks`; "" where all
/// are.
std::string missing_blocks_text(const std::set<int64_t>& blocks, int64_t count) {
  std::vector<std::string> runs;
  for (int64_t first = 0; first < count; ++first) {
    if (blocks.contains(first)) continue;
    int64_t last = first;
    while (last + 1 < count && !blocks.contains(last + 1)) ++last;
    runs.push_back(last > first ? cat(first, " to ", last) : cat(first));
    first = last;
  }
  return runs.empty() ? "" : cat(" (not ", join(runs, ", "), ")");
}

std::string pad_text(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

}  // namespace

std::vector<std::string> trained_table(const ModelDescription& model) {
  if (model.trains_all()) return {};
  std::map<std::string, TrainedModules> trained;
  // The names, in the order of the model.
  std::vector<std::string> names, others;
  int64_t parameters = 0;
  for (const TensorInfo& tensor : model.tensors) {
    const ModuleInBlock module =
        split_module_path(module_of(tensor), tensor_names(model.family).root);
    std::vector<std::string>& list = tensor.trainable ? names : others;
    if (std::find(list.begin(), list.end(), module.name) == list.end()) list.push_back(module.name);
    if (!tensor.trainable) continue;
    trained[module.name].add(tensor, module);
    parameters += tensor.numel();
  }
  const int64_t total = count_parameters(model).total;
  std::vector<std::string> lines{
      cat("trained: ", parameters, " of ", total, " parameters (",
          percent_text(static_cast<double>(parameters) / static_cast<double>(total), 2), ")")};
  size_t width = 0, method_width = 0;
  for (const std::string& name : names) {
    width = std::max(width, name.size());
    method_width = std::max(method_width, trained.at(name).method_text().size());
  }
  for (const std::string& name : names) {
    const TrainedModules& modules = trained.at(name);
    const std::string blocks =
        modules.blocks.empty() ? ""
                               : cat(modules.blocks.size(), " of ", model.block_count, " blocks",
                                     missing_blocks_text(modules.blocks, model.block_count), ", ");
    lines.push_back(cat("  ", pad_text(name, width), "  ",
                        pad_text(modules.method_text(), method_width), "  ", blocks,
                        modules.parameters, " parameters"));
  }
  std::erase_if(others, [&](const std::string& name) { return trained.count(name) > 0; });
  if (!others.empty()) lines.push_back(cat("  not trained: ", join(others, ", ")));
  return lines;
}

}  // namespace ftrun

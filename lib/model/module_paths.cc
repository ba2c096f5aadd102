#include "model/module_paths.h"

#include <cctype>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/block_parameters.h"
#include "model/families.h"
#include "model/multimodal.h"
#include "model/tensor_names.h"

namespace ftrun {
namespace {

/// Lists the norms of a block. Norms with one module for each head ('*' in the family's name) are
/// listed one by one.
std::vector<std::string> block_norms(const TensorNames& names, const ModelConfig& config) {
  std::vector<std::string> norms;
  for (size_t i = 0; i < kBlockNorms; ++i) {
    const auto norm = static_cast<BlockNorm>(i);
    if (has_norm(config, norm)) norms.emplace_back(module_name(names, config, norm));
  }
  if (config.qk_norm == QkNorm::kNone) return norms;
  for (const auto& [norm, heads] :
       {std::pair{names.q_norm, config.query_heads}, std::pair{names.k_norm, config.kv_heads}}) {
    const size_t star = norm.find('*');
    for (int64_t head = 0; head < (star == std::string_view::npos ? 1 : heads); ++head) {
      std::string& one = norms.emplace_back(norm);
      if (star != std::string_view::npos) one.replace(star, 1, std::to_string(head));
    }
  }
  return norms;
}

}  // namespace

std::string suggest_name_list(const std::string& text) {
  std::vector<std::string> names{""};
  for (const char c : text) {
    const bool is_of_name = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (!is_of_name && c != ',' && c != ' ') return "";
    if (is_of_name)
      names.back() += c;
    else if (!names.back().empty())
      names.emplace_back();
  }
  if (names.back().empty()) names.pop_back();
  return names.empty() ? "" : cat("[", join(names, ", "), "]");
}

std::string path_in_memory(const ModelConfig& config, std::string_view module) {
  return config.multimodal.empty()
             ? std::string(module)
             : name_in_multimodal_model(module, tensor_names(config.family).root);
}

std::vector<std::string> modules_beside_projections(const ModelConfig& config) {
  const TensorNames& names = tensor_names(config.family);
  std::vector<std::string> modules;
  for (const std::string_view module : {names.head, names.embedding, names.norm, names.positions})
    if (!module.empty()) modules.push_back(path_in_memory(config, module));
  const std::vector<std::string> norms = block_norms(names, config);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const std::string& norm : norms)
      modules.push_back(path_in_memory(config, names.in_block(layer, norm)));
  return modules;
}

std::vector<std::string> decoder_modules(const ModelConfig& config) {
  const TensorNames& names = tensor_names(config.family);
  const std::vector<LinearModule> of_a_block = linear_modules(names);
  std::vector<std::string> modules = modules_beside_projections(config);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (const LinearModule& linear : of_a_block)
      modules.push_back(path_in_memory(config, names.in_block(layer, linear.name)));
  return modules;
}

std::vector<std::string> parent_modules(const std::vector<std::string>& paths) {
  std::set<std::string> parents;
  for (const std::string& path : paths)
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      parents.insert(path.substr(0, dot));
  return {parents.begin(), parents.end()};
}

}  // namespace ftrun

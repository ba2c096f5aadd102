#include "model/tensors.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "model/adapter.h"
#include "model/multimodal.h"

namespace ftrun {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::unordered_map<std::string, const Dims*> shapes_by_name(
    const std::vector<std::pair<std::string, Dims>>& folder_tensors,
    std::vector<std::string>& problems) {
  std::unordered_map<std::string, const Dims*> out;
  for (const auto& [name, shape] : folder_tensors)
    if (!out.emplace(name, &shape).second)
      problems.push_back(cat("tensor ", name, " occurs twice"));
  return out;
}

/// Returns a problem's text with a star in place of the layer number in the tensor's name.
std::string without_layer(const std::string& problem) {
  for (size_t at = problem.find('.'); at != std::string::npos; at = problem.find('.', at + 1)) {
    const size_t end = problem.find_first_not_of("0123456789", at + 1);
    if (end == std::string::npos || end == at + 1 || problem[end] != '.') continue;
    return cat(problem.substr(0, at + 1), "*", problem.substr(end));
  }
  return problem;
}

/// Joins problems that differ only in the layer number: keeps the first one, and adds how many more
/// layers have it.
std::vector<std::string> join_layer_problems(const std::vector<std::string>& problems) {
  std::unordered_map<std::string, size_t> counts;
  for (const std::string& problem : problems) ++counts[without_layer(problem)];
  std::vector<std::string> lines;
  for (const std::string& problem : problems) {
    size_t& count = counts[without_layer(problem)];
    if (count > 0)
      lines.push_back(count == 1 ? problem
                                 : cat(problem, " (and in ", count - 1,
                                       count == 2 ? " more layer)" : " more layers)"));
    count = 0;
  }
  return lines;
}

}  // namespace

std::string dims_text(const Dims& dims) {
  return cat("[", join_numbers(dims, ", "), "]");
}

void add_shape_problem(const std::string& name, const Dims* found, const Dims& expected,
                       std::vector<std::string>& problems) {
  if (found == nullptr)
    problems.push_back(cat("tensor ", name, " is missing; expected shape ", dims_text(expected)));
  else if (*found != expected)
    problems.push_back(
        cat("tensor ", name, " has shape ", dims_text(*found), "; expected ", dims_text(expected)));
}

bool is_ignored_tensor(const ModelDescription& model, const std::string& name) {
  const TensorNames& names = tensor_names(model.family);
  if (model.tied && name == cat(names.head, ".weight")) return true;
  return std::any_of(names.ignored_suffixes.begin(), names.ignored_suffixes.end(),
                     [&](std::string_view end) { return !end.empty() && ends_with(name, end); });
}

std::vector<std::string> check_tensors(
    const ModelDescription& model,
    const std::vector<std::pair<std::string, Dims>>& folder_tensors) {
  std::vector<std::string> problems;
  auto unread_shapes = shapes_by_name(folder_tensors, problems);
  std::unordered_set<std::string> expected_names;
  for (const TensorInfo& tensor : model.tensors) {
    if (tensor.initial.source != InitialSource::kFolder) continue;
    for (const std::string& name : tensor.file_names()) {
      if (!expected_names.insert(name).second) continue;
      const auto it = unread_shapes.find(name);
      add_shape_problem(name, it == unread_shapes.end() ? nullptr : it->second, tensor.file_shape(),
                        problems);
      if (it != unread_shapes.end()) unread_shapes.erase(it);
    }
  }
  for (const auto& entry : folder_tensors) {
    const bool is_known = is_ignored_tensor(model, entry.first) ||
                          (!model.multimodal.empty() && is_outside_decoder(entry.first));
    if (unread_shapes.erase(entry.first) != 0 && !is_known) {
      problems.push_back(
          cat("tensor ", entry.first, " is not a parameter of a ", model.family, " model"));
    }
  }
  return problems;
}

std::string tensor_problems_text(const std::vector<std::string>& problems, size_t max_problems) {
  const bool is_long = problems.size() > max_problems;
  std::vector<std::string> lines = is_long ? join_layer_problems(problems) : problems;
  const size_t left_out = lines.size() - std::min(lines.size(), max_problems);
  lines.resize(lines.size() - left_out);
  return cat(join(lines, "\n  "), left_out == 0 ? "" : cat("\n  and ", left_out, " more"));
}

bool has_weight_decay(const TensorInfo& tensor) {
  // Tensors of one dimension (norm weights) and biases do not decay. LoRA's tensors do, also
  // magnitudes, which have one dimension.
  return is_lora_name(tensor.name) ||
         (tensor.shape.size() >= 2 && !ends_with(tensor.name, ".bias"));
}

}  // namespace ftrun

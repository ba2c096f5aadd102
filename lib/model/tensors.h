#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// Compares the tensors of a model folder (names and shapes, in any order) with those that the
/// model needs. Returns one line for each problem: missing, misshapen, listed twice, or unknown
/// tensors. Tensors that other tools leave and that hold no information (rotary_emb.inv_freq,
/// masked_bias, a lm_head.weight of a model with tied embeddings) are not problems.
std::vector<std::string> check_tensors(
    const ModelDescription& model, const std::vector<std::pair<std::string, Dims>>& folder_tensors);

/// Adds a problem where a tensor is missing (`found` is null) or has another shape than expected.
void add_shape_problem(const std::string& name, const Dims* found, const Dims& expected,
                       std::vector<std::string>& problems);

/// The largest number of problems that a message lists if it gives no cause for them.
inline constexpr size_t kMaxTensorProblems = 20;

/// Formats the problems as lines for a message. If there are more than `max_problems`, problems
/// that layers have in common become one line, and those above `max_problems` are only counted.
std::string tensor_problems_text(const std::vector<std::string>& problems,
                                 size_t max_problems = kMaxTensorProblems);

/// Returns whether a tensor of a model folder, which the model does not read, may be ignored.
bool is_ignored_tensor(const ModelDescription& model, const std::string& name);

/// Returns whether AdamW's weight decay usually applies to the tensor: it does to matrices and to
/// all tensors of adapters, but not to norms and biases.
bool has_weight_decay(const TensorInfo& tensor);

/// Formats dimensions: "[576, 1536]".
std::string dims_text(const Dims& dims);

}  // namespace ftrun

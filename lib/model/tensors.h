#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// Compares what a model folder holds (names and shapes, in any order) with what the model needs of
/// it. Returns one line a problem: missing, misshapen, listed twice, or unknown tensors. Tensors
/// that other tools leave behind and that carry nothing (rotary_emb.inv_freq, masked_bias, a
/// lm_head.weight beside tied embeddings) are not problems.
std::vector<std::string> check_tensors(const ModelDescription& model,
                                       const std::vector<std::pair<std::string, Dims>>& found);

/// Adds a problem where a tensor is missing (`found` is null) or has another shape than expected.
void add_shape_problem(const std::string& name, const Dims* found, const Dims& expected,
                       std::vector<std::string>& problems);

/// The most problems that a message lists where nothing else says what is wrong.
inline constexpr size_t kMostTensorProblems = 20;

/// Formats the problems as lines for a message. Where there are more than `most`, those that layers
/// have in common become one line, and the rest above `most` is counted.
std::string tensor_problems_text(const std::vector<std::string>& problems,
                                 size_t most = kMostTensorProblems);

/// Says whether a tensor of a model folder, which the model does not read, may be ignored.
bool is_ignored_tensor(const ModelDescription& model, const std::string& name);

/// Says whether AdamW's weight decay is usual for the tensor: matrices and all that adapters add
/// yes; norms and biases no.
bool decays(const TensorInfo& tensor);

/// Formats dimensions: "[576, 1536]".
std::string dims_text(const Dims& dims);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/description.h"

namespace ftrun {

// Tensor parallelism as Shoeybi et al. 2019 ("Megatron-LM") split a decoder: the rows of the query,
// key, value, gate and up matrices and of both vocabulary matrices are shared out among t ranks,
// and the columns of the output and down matrices. With sequence parallelism (Korthikanti et al.
// 2022) what lies between those products is shared out by tokens. All ranks have the same number of
// rows of a vocabulary: missing ones are padding of the last rank's (TensorInfo::padding). They
// have the same number of tokens, too: rows are padded at their ends (BatchShape::row_padding).

/// Lists every reason why a model cannot be split over `degree` ranks, one a line, with the
/// arithmetic and the degrees that divide; none for degree 1.
std::vector<std::string> check_tensor_split(const ModelConfig& config, int64_t degree);

/// Refuses a split with such reasons with one Error(kUsage) that lists them all.
void require_tensor_split(const ModelConfig& config, const TensorSplit& split);

/// Lists the degrees that a model can be split by, the smallest (1) first.
std::vector<int64_t> tensor_split_degrees(const ModelConfig& config);

/// Adds padding to the rows of a micro-batch, as little as makes its tokens divide among
/// sequence-parallel ranks.
BatchShape pad_rows(BatchShape batch, const TensorSplit& split);

/// Counts the tokens of the hidden states that a rank holds.
int64_t hidden_tokens(const BatchShape& batch, const TensorSplit& split);

/// Returns the config of what one rank has: its share of the heads, of the feed-forward and of the
/// vocabulary.
ModelConfig local_config(const ModelConfig& config, const TensorSplit& split);

/// Returns how many ranks have the same key and value heads: more than one where there are fewer
/// heads than ranks.
int kv_copies(const ModelConfig& config, const TensorSplit& split);

/// Describe what a rank has of a tensor of this name and shape: its share of the rows or columns,
/// of rows that `copies` neighbouring ranks have together, or all of it. `gradient_is_term`: its
/// gradient on a rank is a term of a sum over the ranks.
TensorInfo split_rows(std::string name, Dims shape, const TensorSplit& split, int copies = 1);
TensorInfo split_columns(std::string name, Dims shape, const TensorSplit& split);
TensorInfo replicated(std::string name, Dims shape, const TensorSplit& split,
                      bool gradient_is_term);

/// Returns TensorInfo::local of tensor-parallel rank `index`, seen from any rank.
Box local_part(const TensorInfo& tensor, int index);

}  // namespace ftrun

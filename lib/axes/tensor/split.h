#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/description.h"
#include "model/model_config.h"

namespace ftrun {

// Tensor parallelism as Shoeybi et al. 2019 ("Megatron-LM") split a decoder among t ranks: the
// query, key, value, gate and up matrices and both vocabulary matrices by output features (rows of
// W [out, in]; Megatron's ColumnParallelLinear), and the output and down matrices by input features
// (columns; RowParallelLinear). With sequence parallelism (Korthikanti et al. 2022) the hidden
// states between those linear layers are divided by tokens. All ranks have the same number of rows
// of a vocabulary: the last rank pads its own (TensorInfo::padding). All ranks also have the same
// number of tokens: sequences are padded at their ends (BatchShape::sequence_padding).

/// Lists every reason why a model cannot be split over `degree` ranks, with the arithmetic and the
/// degrees that divide; nothing for degree 1.
std::vector<std::string> tensor_split_problems(const ModelConfig& config, int64_t degree);

/// Throws one Error(kUsage) that lists all reasons of tensor_split_problems(), if there are any.
void check_tensor_split(const ModelConfig& config, const TensorSplit& split);

/// Lists the degrees that a model can be split by, the smallest (1) first.
std::vector<int64_t> tensor_split_degrees(const ModelConfig& config);

/// Pads the sequences of a micro-batch by the minimum number of tokens with which its tokens divide
/// evenly among sequence-parallel ranks.
BatchShape pad_sequence_length(BatchShape batch, const TensorSplit& split);

/// Counts the tokens of the hidden states that a rank holds.
int64_t hidden_tokens(const BatchShape& batch, const TensorSplit& split);

/// Returns the config of one rank's part of the model: its share of the heads, of the feed-forward
/// and of the vocabulary.
ModelConfig local_config(const ModelConfig& config, const TensorSplit& split);

/// Returns how many ranks hold copies of the same key and value heads: more than one if a model has
/// fewer such heads than there are ranks.
int kv_copies(const ModelConfig& config, const TensorSplit& split);

/// Describes the part of a tensor of this name and shape that a rank has. split_rows(): its share
/// of the rows, which are output features (Megatron's column-parallel layers, as W is [out, in]);
/// with `copies` above 1, that many neighboring ranks have the same rows.
/// split_columns(): its share of the columns (row-parallel layers). replicate(): the whole tensor;
/// `gradient_is_partial` says that a rank computes a partial gradient, which is summed over the
/// ranks.
TensorInfo split_rows(std::string name, Dims shape, const TensorSplit& split, int copies = 1);
TensorInfo split_columns(std::string name, Dims shape, const TensorSplit& split);
TensorInfo replicate(std::string name, Dims shape, const TensorSplit& split,
                     bool gradient_is_partial);

/// Returns the box TensorInfo::local of tensor-parallel rank `index`; `tensor` may be that of any
/// rank.
Box box_of_rank(const TensorInfo& tensor, int index);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "config/problem.h"
#include "model/description.h"

namespace ftrun {

/// Returns the part of each layer that the first tensor-parallel rank has, or a rank of the mesh.
TensorSplit tensor_split(const Config& config);
TensorSplit tensor_split(const Config& config, int rank);

/// Counts the places at the end of each row that no token takes: they make a micro-batch's tokens
/// divide among sequence-parallel ranks.
int64_t row_padding(const Config& config);

/// Says that rows are padded, and how not to; nothing where they are not.
std::optional<Problem> row_padding_notice(const Config& config);

}  // namespace ftrun

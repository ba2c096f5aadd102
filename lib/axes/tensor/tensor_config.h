#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "config/problem.h"
#include "model/description.h"

namespace ftrun {

/// Returns the part of each layer that belongs to the first tensor-parallel rank, or to rank `rank`
/// of the mesh.
TensorSplit tensor_split(const Config& config);
TensorSplit tensor_split(const Config& config, int rank);

/// Returns the number of padding tokens at the end of each sequence, which make a micro-batch's
/// tokens divide among sequence-parallel ranks.
int64_t sequence_padding(const Config& config);

/// Returns a notice that sequences are padded, and how to avoid that; nothing if they are not
/// padded.
std::optional<Problem> sequence_padding_notice(const Config& config);

}  // namespace ftrun

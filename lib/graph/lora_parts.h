#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// A part of a product's results with a low-rank adapter: its columns of y and of h.
struct LoraPart {
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_rank = 0;
  int64_t rank = 0;
  double scale = 1.0;
};

/// The parts of a kLoraUp, kLoraUpDgrad, kLoraUpWgrad or kDoraSquaredLengths, in their order.
std::vector<LoraPart> lora_parts(const LayerGraph& graph, const Op& op);

/// Of the widest one.
int64_t most_columns(const std::vector<LoraPart>& parts);

/// J: elements of a row of h.
int64_t lora_ranks(const std::vector<LoraPart>& parts);

}  // namespace ftrun

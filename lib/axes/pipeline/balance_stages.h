#pragma once

#include <cstdint>
#include <vector>

#include "axes/pipeline/pipeline_layout.h"
#include "axes/pipeline/schedule_timeline.h"
#include "axes/pipeline/schedule_traits.h"
#include "model/description.h"

namespace ftrun {

// The functions of this header choose where a model is cut for a pipeline. The slowest chunk
// determines the pace of all chunks, so they choose the cut whose most expensive chunk costs least.

/// Computes the cost of each phase of a micro-batch in a layer, or in each chunk, in op_cost's
/// unit.
PhaseSeconds phase_costs(const LayerGraph& graph);
std::vector<PhaseSeconds> chunk_costs(const ModelDescription& model, const PipelineLayout& layout);

/// Computes the load of each layer of a model built for training: embedding, blocks, head.
std::vector<double> layer_loads(const ModelDescription& model, PipelineBalance balance);

/// Rounds loads to the whole numbers that balance_blocks() compares: equal ones give equal cuts.
std::vector<int64_t> round_loads(const std::vector<double>& loads);

/// Computes the number of blocks, one or more, of each of `chunks` chunks. The chosen cut has the
/// lightest heaviest chunk; among such cuts it is the most even one (smallest sum of squares), and
/// among these the one with the fewest blocks in its first chunks, which keep the most activations.
/// `loads` has an entry for each layer: embedding (in the first chunk), blocks, head (in the last
/// chunk). Loads are compared to a millionth of the heaviest, so that every machine makes the same
/// cut. `chunks` is at most the number of blocks.
std::vector<int64_t> balance_blocks(const std::vector<double>& loads, int chunks);

/// Makes the layout of stages x chunks model chunks with these numbers of blocks. Embedding and
/// head are added, so the first and the last number may be 0.
PipelineLayout layout_of_blocks(int stages, int chunks, ChunkPlacement placement,
                                const std::vector<int64_t>& blocks);

/// Makes the layout whose chunks are most nearly equal in the quantity `balance`. Every rank
/// computes the same layout from a model built for training.
PipelineLayout balance_stages(const ModelDescription& model, int stages, int chunks,
                              ChunkPlacement placement,
                              PipelineBalance balance = PipelineBalance::kCost);

}  // namespace ftrun

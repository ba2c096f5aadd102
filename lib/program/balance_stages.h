#pragma once

#include <cstdint>
#include <vector>

#include "config/pipeline_partition.h"
#include "model/description.h"
#include "program/pipeline_layout.h"
#include "program/schedule_timeline.h"

namespace ftrun {

// These functions choose where a model is cut for a pipeline. The slowest part sets the pace of all
// of them, so the cut is the one whose dearest part is the cheapest there is.

/// PhaseSeconds holds the cost of each phase of a micro-batch in a layer or part, in op_price's
/// unit.
PhaseSeconds phase_prices(const LayerGraph& graph);
std::vector<PhaseSeconds> part_prices(const ModelDescription& model, const PipelineLayout& layout);

/// The weight of each layer of a model built for training: embedding, blocks, head.
std::vector<double> layer_weights(const ModelDescription& model, PipelinePartition by);

/// Weights as balanced_blocks() compares them: whole numbers, of which equal ones give equal cuts.
std::vector<int64_t> whole_weights(const std::vector<double>& weights);

/// The number of blocks of each of `parts` parts, one or more: the cut of the blocks for which the
/// heaviest part is the lightest, among these the most even (least sum of squares), among these the
/// one with the fewest blocks in its first parts, which keep most activations. `weights` has an
/// entry for each layer: embedding (in the first part), blocks, head (in the last). Weights are
/// compared to a millionth of the heaviest, so that the cut is the same on every machine. At most
/// as many parts as blocks.
std::vector<int64_t> balanced_blocks(const std::vector<double>& weights, int parts);

/// The layout of parts with these numbers of blocks, stages x chunks of them; embedding and head
/// come on top, so the first and the last may be 0.
PipelineLayout layout_of_blocks(int stages, int chunks, ChunkPlacement placement,
                                const std::vector<int64_t>& blocks);

/// The layout whose parts are equal by `by`. Every rank gets the same of a model built for
/// training.
PipelineLayout balance_stages(const ModelDescription& model, int stages, int chunks,
                              ChunkPlacement placement,
                              PipelinePartition by = PipelinePartition::kCost);

}  // namespace ftrun

#pragma once

#include <vector>

#include "base/recompute_level.h"
#include "graph/op.h"

namespace ftrun {

struct LayerGraph;

/// RecomputePolicy specifies which results of a layer's forward list are kept for its backward
/// list. The other results are recomputed by the same operations from the same numbers, so
/// gradients have the same bits under every policy.
///
/// The choices, for a token of a block with D hidden, Q = (H+2K)d, F feed-forward and T tokens a
/// sequence:
///   value            elements   operations to recompute it   per element
///   gate and up      2 F        4 D F                        2 D
///   rotated q, k, v  Q          2 D Q                        2 D
///   residual sum     D          2 D H d                      2 H d, mostly 2 D
///   attention, lse   H d + H    2 H d T                      2 T
///
/// The trade-off of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large
/// Transformer Models", section 5), the T x T scores of attention, is not a choice here: the
/// kernels never store them. Every remaining matrix multiplication costs the same per element;
/// attention costs less where sequences are shorter than D, and more where they are longer. So no
/// fixed cost per element separates values that should be kept from the others, and kSelective
/// looks for the best choice within a budget: of all choices whose operations cost at most `budget`
/// of the forward list, the one that keeps the fewest bytes (among equals the cheapest).
///
/// kFull costs less than a second run of the forward list (0.70 to 0.87 of it for blocks of Llama's
/// shape), since backward reads neither the down projection nor the block's output.
struct RecomputePolicy {
  RecomputeLevel level = RecomputeLevel::kNone;
  /// The share of the cost of the layer's forward list that recomputed operations may have
  /// (kSelective). The default is the smallest value (in steps of 0.05) for which gate and up, by
  /// far the largest values, are recomputed in every family: SmolLM2-135M keeps 19 % of the bytes
  /// at T = 512, 22 % at 1024, Llama 2 7B 29 % at 2048, for 0.54 to 0.60 of the forward list, which
  /// is a fifth of the layer's step.
  double budget = 0.6;
  bool operator==(const RecomputePolicy&) const = default;
};

/// Chooses the kept values of a graph whose forward list is complete and whose backward lists are
/// empty: true when backward may keep a value from forward. Values that cannot be recomputed are
/// always kept.
std::vector<bool> choose_kept_values(const LayerGraph& graph, const RecomputePolicy& policy);

/// Returns whether a value is a result of a cheap kind, which is recomputed under every policy. The
/// sum of a residual norm and statistics are not such results.
bool is_cheap_result(const LayerGraph& graph, ValueId id);

}  // namespace ftrun

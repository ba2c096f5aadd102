#pragma once

#include <vector>

#include "graph/recompute.h"

namespace ftrun {

struct LayerGraph;

/// Fills input_grad, weight_grad and backward of a graph whose forward list is complete: visits the
/// forward list in reverse, emits each kind's gradient operations, sums gradients of values used
/// twice (a residual's gradient becomes the extra term of the norm's gradient), and marks the
/// values that must be saved. Values that are not saved, results of cheap kinds and those that
/// `policy` chooses not to keep, are recomputed: their forward operations run again right before
/// the first reader.
///
/// Gradients of norms' weights are computed with the input gradients (input_grad).
///
/// An all-gather's gradient is a reduce-scatter and the other way round; an all-reduce's is the
/// gradient itself. If LinearAttrs says that an input's gradient is a term of a sum, it is summed
/// over the ranks: by the reduce-scatter when the input was gathered, else by an all-reduce. The
/// weight gradients of such a linear layer are emitted after that collective, so that both can run
/// at the same time.
void derive_backward(LayerGraph& graph, const RecomputePolicy& policy = {});

/// Derives the backward lists for a given choice of kept values: a forward value that backward
/// reads is saved if `kept`, and otherwise recomputed right before its first reader.
void derive_backward_keeping(LayerGraph& graph, const std::vector<bool>& kept);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "model/description.h"
#include "program/pipeline_layout.h"
#include "search/layout.h"
#include "search/search_task.h"

namespace ftrun {

/// Bound is what a step of a layout takes at least, by arithmetic alone: no program is built. Main
/// memory beside a GPU is not bounded.
struct Bound {
  double seconds = 0;
  RankMemory memory;
};

/// Bounds finds the bounds of layouts. The time is that of the computation of the busiest stage
/// with the filling and draining of the pipeline, then its update; or of what is exchanged, where
/// that is longer. The memory is the state that one rank keeps with either all its gradients or
/// what its layers have saved at once. Both are sums of what the exact plan adds up, too, so
/// neither is above it (tests/search).
class Bounds {
 public:
  /// `task` is borrowed.
  explicit Bounds(const SearchTask& task) : task_(task) {}

  /// `config` is the task's with the layout, resolved. Errors of training_model(), and of
  /// list_seconds().
  Bound of(const Layout& layout, const Config& config);

 private:
  /// GraphCost is the time and memory of a graph for one micro-batch.
  struct GraphCost {
    double forward = 0;
    /// Gradients as one list, and as two.
    double backward = 0;
    double apart = 0;
    /// Exchange between tensor ranks.
    double exchange = 0;
    int64_t saved = 0;
  };
  struct Card {
    ModelDescription model;
    std::vector<GraphCost> graphs;
    std::map<std::tuple<int64_t, int64_t, PipelineSchedule>, PipelineLayout> cuts;

    const GraphCost& of_layer(size_t layer) const {
      return graphs[static_cast<size_t>(model.layers[layer].graph)];
    }
  };
  /// The weights of a stage, by bytes and by elements that train.
  struct StageWeights {
    double bytes = 0;
    double trained = 0;
    double trained_bytes = 0;
    /// Bytes of tensors that stage 3 shards, and of those of them that train.
    double sharded_bytes = 0;
    double master_bytes = 0;
  };

  Card& card_of(const Layout& layout, const Config& config);
  GraphCost cost_of(const LayerGraph& graph, const Layout& layout) const;
  double compute_seconds(const Card& card, const PipelineLayout& cut, const Layout& layout) const;
  double exchange_seconds_of(const std::vector<StageWeights>& stages, const Layout& layout,
                             const Config& config) const;
  double update_seconds(double bytes, const Layout& layout) const;
  StageWeights weights_of(const Card& card, const PipelineLayout& cut, int stage,
                          const Config& config) const;
  int64_t saved_of(const Card& card, const PipelineLayout& cut, int stage,
                   const Layout& layout) const;
  int64_t memory_of(const StageWeights& weights, int64_t saved, const Layout& layout,
                    const Config& config) const;

  const SearchTask& task_;
  std::map<std::tuple<int64_t, int64_t, RecomputeLevel, int64_t>, Card> cards_;
};

}  // namespace ftrun

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "axes/pipeline/pipeline_layout.h"
#include "base/error.h"
#include "machine/least_exchange.h"
#include "model/description.h"
#include "search/layout.h"
#include "search/search_task.h"
#include "search/state_facts.h"

namespace ftrun {

/// Bound is a lower bound of the time of a step of a layout and of its memory. It is computed by
/// arithmetic only: no program is built.
struct Bound {
  double seconds = 0;
  /// The seconds if nothing overlapped. It is not a bound, but an estimate that shows which layouts
  /// are worth planning.
  double seconds_without_overlap = 0;
  MemoryNeed memory;
};

/// Bounds computes the bounds of layouts. The time is the computation of the busiest stage, with
/// the filling and draining of the pipeline and the update, or the communication, if that takes
/// longer. The memory is the state of one rank, and either all its gradients or the most
/// activations that its layers save at one time. The exact plan includes all terms of both sums, so
/// neither bound exceeds it (tests/search). Costs that several layouts share (of layers, the cut of
/// the model, the activations saved in a schedule) are computed once.
class Bounds {
 public:
  /// Borrows `task`.
  explicit Bounds(const SearchTask& task) : task_(task) {}

  using ModelCostsKey = std::tuple<int64_t, int64_t, RecomputeLevel, int64_t>;
  /// Models are those whose costs are missing, each with a layout that needs it.
  using Models = std::map<ModelCostsKey, Layout>;

  /// Adds the model of a layout, unless its costs are there.
  void add_missing(const Layout& layout, Models& models) const;

  /// Computes the costs of models, which layouts share, on all processors.
  void prepare(const Models& models);

  /// Computes the bound of a layout. `facts` are the state facts of the task's config with the
  /// layout. Throws the errors of try_layout(), training_model(), and list_seconds().
  Bound of(const Layout& layout, const StateFacts& facts);

 private:
  /// GraphCost is the time and memory of a graph for one micro-batch.
  struct GraphCost {
    double forward = 0;
    /// Seconds of backward if it is one list.
    double backward = 0;
    /// Seconds of backward if it is two lists: input gradients, and weight gradients.
    double backward_split = 0;
    /// Seconds of communication between tensor ranks.
    double exchange = 0;
    /// Bytes that forward saves for backward. If gradients are two lists: bytes saved for the
    /// weight gradients, for the input gradients only, and by the input gradients for the weight
    /// gradients.
    int64_t saved = 0;
    int64_t saved_for_weights = 0;
    int64_t saved_for_inputs = 0;
    int64_t deferred = 0;

    GraphCost& operator+=(const GraphCost& other);
    GraphCost operator-(const GraphCost& other) const;
  };
  /// Weights holds the weight of each layer, by which a pipeline is cut.
  using Weights = std::vector<int64_t>;
  /// ModelCosts holds the model for one tensor degree, micro-batch and recompute level, with the
  /// costs of its layers.
  struct ModelCosts {
    ModelDescription model;
    /// The costs of the first k layers.
    std::vector<GraphCost> prefix_costs;
    std::vector<double> weights;
    Weights whole_weights;
    /// The error that prevented computing the costs.
    std::optional<Error> failure;

    /// Returns the cost of a range of layers.
    GraphCost between(LayerRange range) const {
      return prefix_costs[static_cast<size_t>(range.end)] -
             prefix_costs[static_cast<size_t>(range.first)];
    }
  };
  /// StageWeights counts the weights of a stage, by bytes and by elements that train.
  struct StageWeights {
    double bytes = 0;
    double trained = 0;
    double trained_bytes = 0;
    /// The number of trained elements of tensors whose state may be offloaded.
    double movable = 0;
    /// Bytes of tensors that stage 3 shards.
    double sharded_bytes = 0;
    double master_bytes = 0;
  };
  /// PipelineCut is the cut of a pipeline, with the weights of its stages by what is sharded.
  struct PipelineCut {
    PipelineLayout layout;
    std::map<std::pair<int64_t, bool>, std::vector<StageWeights>> weights;
  };
  /// SharedCosts holds the costs that layouts share which differ only in their state.
  struct SharedCosts {
    const ModelCosts* costs = nullptr;
    PipelineCut* cut = nullptr;
    double compute = 0;
    /// The most bytes that each stage saves at one time.
    std::vector<int64_t> saved;
  };

  static ModelCostsKey model_costs_key(const Layout& layout);
  ModelCosts make_model_costs(const Layout& layout) const;
  const ModelCosts& model_costs_of(const Layout& layout);
  PipelineCut& cut_of(const ModelCosts& costs, const Layout& layout);
  SharedCosts& shared_costs_of(const Layout& layout);
  GraphCost cost_of(const LayerGraph& graph, const Layout& layout) const;
  double compute_seconds(const ModelCosts& costs, const PipelineLayout& cut,
                         const Layout& layout) const;
  double exchange_seconds_of(const std::vector<StageWeights>& stages, const Layout& layout,
                             const StateFacts& facts);
  double update_seconds(double bytes, const Layout& layout) const;
  const std::vector<StageWeights>& weights_of(const ModelCosts& costs, PipelineCut& cut,
                                              const StateFacts& facts);
  double seconds_of_byte(std::string_view kind, int64_t ranks, Crossing crossing);
  int64_t saved_of(const ModelCosts& costs, const PipelineLayout& cut, int stage,
                   const Layout& layout) const;
  MemoryNeed memory_of(const StageWeights& weights, int64_t saved, const Layout& layout,
                       const StateFacts& facts) const;

  const SearchTask& task_;
  std::map<ModelCostsKey, ModelCosts> model_costs_;
  /// Numbers of blocks by the weights of layers and the number of parts.
  std::map<std::pair<Weights, int64_t>, std::vector<int64_t>> blocks_;
  /// Cuts by tensor ranks, stages, chunks, their placement, and numbers of blocks.
  std::map<std::tuple<int64_t, int64_t, int64_t, ChunkPlacement, std::vector<int64_t>>, PipelineCut>
      cuts_;
  /// Shared costs by ranks, tensor ranks, stages, chunks, schedule, micro-batch and their number,
  /// and recompute.
  std::map<Layout, SharedCosts> shared_costs_;
  std::map<std::tuple<std::string_view, int64_t, Crossing>, double> seconds_of_byte_;
};

}  // namespace ftrun

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
#include "machine/collective_lower_bound.h"
#include "model/description.h"
#include "search/layout.h"
#include "search/search_task.h"
#include "search/state_properties.h"

namespace ftrun {

/// LayoutBound holds lower bounds on the step time and on the memory of a layout. They are computed
/// by arithmetic only: no program is built.
struct LayoutBound {
  double seconds = 0;
  /// The seconds if computation and communication did not overlap. This is not a bound, but an
  /// estimate that shows which layouts are worth planning.
  double unoverlapped_seconds = 0;
  MemoryNeed memory;
};

/// BoundCalculator computes the bounds of layouts. The bound on the time is the larger of two
/// terms: the computation of the busiest stage, including the filling and draining of the pipeline
/// and the update; and the communication. The bound on the memory is the state of one rank, plus
/// the larger of its gradients and the maximum of the activations that its layers save at one time.
/// The full plan includes all these terms, so neither bound exceeds it (tests/search). Costs that
/// several layouts share (of layers, the division of the model into stages, the activations saved
/// in a schedule) are computed once.
class BoundCalculator {
 public:
  /// Makes an object without costs. `task` must outlive it.
  explicit BoundCalculator(const SearchTask& task) : task_(task) {}

  using ModelCostsKey = std::tuple<int64_t, int64_t, RecomputeLevel, int64_t>;
  /// MissingModels lists the models whose costs are missing, each with a layout that needs it.
  using MissingModels = std::map<ModelCostsKey, Layout>;

  /// Adds the model of a layout to `models`, unless its costs are known already.
  void add_missing_model(const Layout& layout, MissingModels& models) const;

  /// Computes the costs of the models, using all cores. Layouts share these costs.
  void compute_costs(const MissingModels& models);

  /// Computes the bound of a layout. `properties` are the state properties of the task's config
  /// with the layout. Throws the errors of resolve_layout(), build_training_model(), and
  /// list_seconds().
  LayoutBound compute_bound(const Layout& layout, const StateProperties& properties);

 private:
  /// GraphCost is the time and memory of a graph for one micro-batch.
  struct GraphCost {
    double forward_seconds = 0;
    /// Seconds of backward if it is one operation list.
    double backward_seconds = 0;
    /// Seconds of backward if it is two operation lists: input gradients and weight gradients.
    double split_backward_seconds = 0;
    /// Seconds of communication between tensor ranks.
    double communication_seconds = 0;
    /// Bytes that forward saves for backward (`saved`). If backward is two operation lists: bytes
    /// that forward saves for the weight gradients, bytes that it saves for the input gradients
    /// only, and bytes that the input-gradient list saves for the weight gradients
    /// (`deferred_bytes`).
    int64_t saved = 0;
    int64_t saved_for_weights_bytes = 0;
    int64_t saved_for_inputs_bytes = 0;
    int64_t deferred_bytes = 0;

    GraphCost& operator+=(const GraphCost& other);
    GraphCost operator-(const GraphCost& other) const;
  };
  /// LayerLoads holds the load of each layer in whole numbers (round_loads()). Equal loads give
  /// equal stage partitions.
  using LayerLoads = std::vector<int64_t>;
  /// ModelCosts holds the model for one tensor degree, micro-batch and recompute level, with the
  /// costs of its layers.
  struct ModelCosts {
    ModelDescription model;
    /// Element k is the cost of the first k layers.
    std::vector<GraphCost> prefix_costs;
    /// The load of each layer, by which layers are divided among stages, and the same in whole
    /// numbers.
    std::vector<double> layer_loads;
    LayerLoads rounded_layer_loads;
    /// The error that prevented computing the costs.
    std::optional<Error> failure;

    /// Returns the cost of a range of layers.
    GraphCost cost_of(LayerRange range) const {
      return prefix_costs[static_cast<size_t>(range.end)] -
             prefix_costs[static_cast<size_t>(range.first)];
    }
  };
  /// StageParameters holds the sizes of the parameters of a pipeline stage, in bytes and in trained
  /// elements.
  struct StageParameters {
    double bytes = 0;
    double trained_elements = 0;
    double trained_bytes = 0;
    /// The number of trained elements of tensors whose state may be offloaded.
    double offloadable_elements = 0;
    /// Bytes of tensors that stage 3 shards.
    double sharded_bytes = 0;
    double master_bytes = 0;
  };
  /// StagePartition is the division of a model into pipeline stages, with the StageParameters for
  /// each persistence threshold, with and without a master copy.
  struct StagePartition {
    PipelineLayout layout;
    std::map<std::pair<int64_t, bool>, std::vector<StageParameters>> parameters;
  };
  /// SharedCosts holds the costs that are equal for layouts that differ only in how they keep their
  /// state.
  struct SharedCosts {
    const ModelCosts* costs = nullptr;
    StagePartition* pipeline = nullptr;
    double compute_seconds = 0;
    /// The maximum number of bytes that each stage saves at one time.
    std::vector<int64_t> saved;
  };

  static ModelCostsKey model_costs_key(const Layout& layout);
  ModelCosts make_model_costs(const Layout& layout) const;
  const ModelCosts& model_costs_of(const Layout& layout);
  StagePartition& stage_partition_of(const ModelCosts& costs, const Layout& layout);
  SharedCosts& shared_costs_of(const Layout& layout);
  GraphCost cost_of(const LayerGraph& graph, const Layout& layout) const;
  double compute_seconds(const ModelCosts& costs, const PipelineLayout& pipeline,
                         const Layout& layout) const;
  double collective_seconds_of(const std::vector<StageParameters>& stages, const Layout& layout,
                               const StateProperties& properties);
  double update_seconds(double bytes, const Layout& layout) const;
  const std::vector<StageParameters>& stage_parameters_of(const ModelCosts& costs,
                                                          StagePartition& pipeline,
                                                          const StateProperties& properties);
  double seconds_per_byte(std::string_view kind, int64_t ranks, NodeSpan node_span);
  int64_t max_saved_bytes(const ModelCosts& costs, const PipelineLayout& pipeline, int stage,
                          const Layout& layout) const;
  MemoryNeed memory_of(const StageParameters& stage, int64_t saved, const Layout& layout,
                       const StateProperties& properties) const;

  const SearchTask& task_;
  std::map<ModelCostsKey, ModelCosts> model_costs_;
  /// The number of blocks in each model chunk, by the weights of layers and the number of chunks.
  std::map<std::pair<LayerLoads, int64_t>, std::vector<int64_t>> blocks_;
  /// Stage partitions by tensor-parallel degree, stages, chunks, placement of chunks, and numbers
  /// of blocks.
  std::map<std::tuple<int64_t, int64_t, int64_t, ChunkPlacement, std::vector<int64_t>>,
           StagePartition>
      stage_partitions_;
  /// Shared costs by layout. The fields of the layout that concern state have their defaults.
  std::map<Layout, SharedCosts> shared_costs_;
  std::map<std::tuple<std::string_view, int64_t, NodeSpan>, double> seconds_per_byte_;
};

}  // namespace ftrun

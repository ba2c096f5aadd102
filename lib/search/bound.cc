#include "search/bound.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "axes/pipeline/balance_stages.h"
#include "axes/pipeline/keys.h"
#include "axes/pipeline/schedule.h"
#include "base/collective_kind.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/run_in_parallel.h"
#include "graph/collective_attrs.h"
#include "graph/op_spec.h"
#include "graph/scratch.h"
#include "machine/op_time.h"
#include "program/training_model.h"
#include "search/enumerate.h"
#include "search/node_ranks.h"

namespace ftrun {
namespace {

/// The time of an instruction is rounded to whole picoseconds, which changes it by at most this
/// many seconds. Each operation may be a separate instruction.
constexpr double kRoundingSeconds = 1e-12;

/// The relative rounding error of floating-point sums; bounds are lowered by it.
constexpr double kSlack = 1e-9;

const Rates& rates_for(const SearchTask& task, const Layout& layout) {
  return task.machine.rates_of(
      task.machine.has_gpus ? 1 : static_cast<int>(ranks_per_node(layout, task.nodes)));
}

/// Sums the seconds of the operations in a list that kernels compute. The list is cut at each
/// collective, because a GPU cannot fuse operations before and after it.
double kernel_seconds(const SearchTask& task, const Rates& rates, const LayerGraph& graph,
                      const std::vector<Op>& list) {
  double seconds = 0;
  size_t first = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && !is_collective(list[i].kind)) continue;
    const auto part = std::span(list).subspan(first, i - first);
    seconds += list_seconds(task.machine, rates, graph, part) -
               kRoundingSeconds * static_cast<double>(part.size());
    first = i + 1;
  }
  return seconds;
}

/// Sums the seconds of the collectives of tensor-parallel ranks in an operation list.
double collective_seconds_of_list(const SearchTask& task, const LayerGraph& graph,
                                  const std::vector<Op>& list, NodeSpan node_span) {
  double seconds = 0;
  for (const Op& op : list) {
    if (!is_collective(op.kind)) continue;
    const OpSpec& spec = op_spec(op.kind);
    // The operation's name is also the name of the collective in the machine file. A shift is one
    // send by each rank.
    const std::string_view name = spec.collective == CollectiveKind::kShift ? "send" : spec.name;
    const ValueId whole = spec.collective == CollectiveKind::kReduceScatter ? op.in[0] : op.out[0];
    const auto ranks = static_cast<int>(op.attrs.get<CollectiveAttrs>().ranks);
    seconds += collective_seconds_lower_bound(
        task.machine, name, static_cast<double>(graph.at(whole).bytes()), ranks, node_span);
  }
  return seconds;
}

double least_slowdown(const Rates& rates, const std::string& kind) {
  const auto found = rates.slowdowns.find(kind);
  if (found == rates.slowdowns.end()) return rates.default_slowdown;
  double least = found->second.points().front().second;
  for (const auto& [x, y] : found->second.points()) least = std::min(least, y);
  return least;
}

/// Calls `each` with the number of each layer of a pipeline stage.
template <class Each>
void for_each_layer(const PipelineLayout& pipeline, int stage, int32_t layers, const Each& each) {
  for (int chunk = 0; chunk < pipeline.chunks(); ++chunk) {
    const LayerRange range = pipeline.layers_of(pipeline.model_chunk_of(stage, chunk), layers);
    for (int32_t l = range.first; l < range.end; ++l) each(static_cast<size_t>(l));
  }
}

/// Returns whether weight gradients are computed by separate operation lists.
bool splits_backward(const Layout& layout) {
  return layout.pipeline > 1 && traits_of(layout.schedule).splits_backward;
}

/// Returns a number of micro-batches that is enough to find the maximum that a stage has in flight
/// during a step. A few are enough, unless the schedule keeps all micro-batches in flight, or runs
/// in rounds whose size depends on their number.
int64_t sampled_micro_batches(const Layout& layout) {
  constexpr int64_t kRounds = 4;
  const PipelineScheduleTraits& traits = traits_of(layout.schedule);
  return traits.keeps_all_micro_batches || traits.runs_in_rounds
             ? layout.accumulation
             : std::min(layout.accumulation, kRounds * layout.pipeline);
}

}  // namespace

BoundCalculator::GraphCost& BoundCalculator::GraphCost::operator+=(const GraphCost& other) {
  forward_seconds += other.forward_seconds;
  backward_seconds += other.backward_seconds;
  split_backward_seconds += other.split_backward_seconds;
  communication_seconds += other.communication_seconds;
  saved += other.saved;
  saved_for_weights_bytes += other.saved_for_weights_bytes;
  saved_for_inputs_bytes += other.saved_for_inputs_bytes;
  deferred_bytes += other.deferred_bytes;
  return *this;
}

BoundCalculator::GraphCost BoundCalculator::GraphCost::operator-(const GraphCost& other) const {
  return {forward_seconds - other.forward_seconds,
          backward_seconds - other.backward_seconds,
          split_backward_seconds - other.split_backward_seconds,
          communication_seconds - other.communication_seconds,
          saved - other.saved,
          saved_for_weights_bytes - other.saved_for_weights_bytes,
          saved_for_inputs_bytes - other.saved_for_inputs_bytes,
          deferred_bytes - other.deferred_bytes};
}

BoundCalculator::GraphCost BoundCalculator::cost_of(const LayerGraph& graph,
                                                    const Layout& layout) const {
  const Rates& rates = rates_for(task_, layout);
  const NodeSpan node_span = node_span_of(layout.tensor, 1, layout, task_.nodes);
  const auto kernels = [&](const std::vector<Op>& list) {
    return kernel_seconds(task_, rates, graph, list);
  };
  GraphCost cost;
  cost.forward_seconds = kernels(graph.forward);
  cost.backward_seconds = kernels(graph.backward);
  cost.split_backward_seconds = kernels(graph.input_grad) + kernels(graph.weight_grad);
  cost.communication_seconds = collective_seconds_of_list(task_, graph, graph.forward, node_span) +
                               collective_seconds_of_list(task_, graph, graph.backward, node_span);
  cost.saved = plan_saved(graph).bytes;
  cost.saved_for_weights_bytes = plan_saved(graph, SavedValueReader::kWeightGrad).bytes;
  cost.saved_for_inputs_bytes = plan_saved(graph, SavedValueReader::kInputGrad).bytes;
  cost.deferred_bytes = plan_deferred(graph).bytes;
  return cost;
}

BoundCalculator::ModelCostsKey BoundCalculator::model_costs_key(const Layout& layout) {
  return {layout.tensor, layout.micro_batch, layout.recompute, layout.ranks()};
}

BoundCalculator::ModelCosts BoundCalculator::make_model_costs(const Layout& layout) const {
  ModelCosts costs;
  try {
    const std::variant<Config, std::string> tried = resolve_layout(task_, layout);
    if (const auto* refusal = std::get_if<std::string>(&tried))
      throw Error(ExitCode::kUsage, *refusal);
    const Config& config = std::get<Config>(tried);
    costs.model = build_training_model(config, task_.model, 0);
    std::vector<GraphCost> graphs;
    for (const LayerGraph& graph : costs.model.graphs) graphs.push_back(cost_of(graph, layout));
    costs.prefix_costs.emplace_back();
    for (const Layer& layer : costs.model.layers) {
      costs.prefix_costs.push_back(costs.prefix_costs.back());
      costs.prefix_costs.back() += graphs[static_cast<size_t>(layer.graph)];
    }
    const auto balance = parse_pipeline_balance(config.pipeline.partition);
    require(balance.has_value(), "pipeline.partition was checked");
    costs.layer_loads = layer_loads(costs.model, *balance);
    costs.rounded_layer_loads = round_loads(costs.layer_loads);
  } catch (const Error& error) {
    costs.failure = error;
  }
  return costs;
}

void BoundCalculator::add_missing_model(const Layout& layout, MissingModels& models) const {
  const ModelCostsKey key = model_costs_key(layout);
  if (!model_costs_.contains(key)) models.try_emplace(key, layout);
}

void BoundCalculator::compute_costs(const MissingModels& models) {
  const std::vector<std::pair<ModelCostsKey, Layout>> wanted(models.begin(), models.end());
  std::vector<ModelCosts> made(wanted.size());
  run_in_parallel(wanted.size(), [&](size_t i) { made[i] = make_model_costs(wanted[i].second); });
  for (size_t i = 0; i < wanted.size(); ++i)
    model_costs_.emplace(wanted[i].first, std::move(made[i]));
}

const BoundCalculator::ModelCosts& BoundCalculator::model_costs_of(const Layout& layout) {
  const ModelCostsKey key = model_costs_key(layout);
  auto found = model_costs_.find(key);
  if (found == model_costs_.end())
    found = model_costs_.emplace(key, make_model_costs(layout)).first;
  const ModelCosts& costs = found->second;
  if (costs.failure) throw *costs.failure;
  return costs;
}

/// Divides the model into pipeline stages as pipeline_layout() does with balance_stages(). Layouts
/// whose layers weigh the same share the numbers of blocks.
BoundCalculator::StagePartition& BoundCalculator::stage_partition_of(const ModelCosts& costs,
                                                                     const Layout& layout) {
  const auto stages = static_cast<int>(layout.pipeline), chunks = static_cast<int>(layout.chunks);
  const ChunkPlacement placement =
      stages == 1 ? ChunkPlacement::kLoop : traits_of(layout.schedule).placement;
  std::vector<int64_t> blocks;
  if (stages > 1) {
    std::vector<int64_t>& known = blocks_[{costs.rounded_layer_loads, stages * chunks}];
    if (known.empty()) known = balance_blocks(costs.layer_loads, stages * chunks);
    blocks = known;
  }
  StagePartition& pipeline = stage_partitions_[{layout.tensor, stages, chunks, placement, blocks}];
  if (pipeline.layout.stages() != stages)
    pipeline.layout = layout_of_blocks(stages, chunks, placement, blocks);
  return pipeline;
}

/// Computes the seconds of the busiest stage. A stage begins when the first micro-batch has passed
/// all layers before the stage's first layer, and computes all its actions one after another. If
/// backward is one list, the earlier layers still have to compute the backward pass of the last
/// micro-batch after it.
double BoundCalculator::compute_seconds(const ModelCosts& costs, const PipelineLayout& pipeline,
                                        const Layout& layout) const {
  const auto layers = static_cast<int32_t>(costs.model.layers.size());
  const bool is_split = splits_backward(layout);
  double largest = 0;
  for (int stage = 0; stage < pipeline.stages(); ++stage) {
    GraphCost cost;
    int first_model_chunk = pipeline.model_chunk_of(stage, 0);
    for (int chunk = 0; chunk < pipeline.chunks(); ++chunk) {
      const int model_chunk = pipeline.model_chunk_of(stage, chunk);
      const LayerRange range = pipeline.layers_of(model_chunk, layers);
      cost += costs.cost_of(range);
      first_model_chunk = std::min(first_model_chunk, model_chunk);
    }
    double around = 0;
    if (pipeline.stages() > 1) {
      const GraphCost& before = costs.prefix_costs[static_cast<size_t>(
          pipeline.layers_of(first_model_chunk, layers).first)];
      around = before.forward_seconds + (is_split ? 0 : before.backward_seconds);
    }
    const double one =
        cost.forward_seconds + (is_split ? cost.split_backward_seconds : cost.backward_seconds);
    const auto times = static_cast<double>(layout.accumulation);
    largest = std::max(largest, std::max(around + times * one, times * cost.communication_seconds));
  }
  return largest;
}

const std::vector<BoundCalculator::StageParameters>& BoundCalculator::stage_parameters_of(
    const ModelCosts& costs, StagePartition& pipeline, const StateProperties& properties) {
  std::vector<StageParameters>& stages =
      pipeline.parameters[{properties.persistence_threshold, properties.has_master}];
  if (!stages.empty()) return stages;
  const ModelDescription& model = costs.model;
  const auto layers = static_cast<int32_t>(model.layers.size());
  for (int stage = 0; stage < pipeline.layout.stages(); ++stage) {
    StageParameters& sum = stages.emplace_back();
    std::set<TensorId> seen;
    for_each_layer(pipeline.layout, stage, layers, [&](size_t l) {
      const Layer& layer = model.layers[l];
      for (const GraphParam& param : layer.params) {
        if (!seen.insert(param.tensors.front()).second) continue;
        const auto bytes = static_cast<double>(model.graph_of(layer).at(param.value).bytes());
        int64_t all = 0, largest = 0;
        for (const TensorId id : param.tensors) {
          const int64_t count = model.tensor(id).local_numel();
          all += count;
          largest = std::max(largest, count);
        }
        const auto elements = static_cast<double>(all);
        sum.bytes += bytes;
        const bool is_large = largest > properties.persistence_threshold && !param.fp32;
        if (is_large) sum.sharded_bytes += bytes;
        if (!model.tensor(param.tensors.front()).trainable) continue;
        sum.trained_elements += elements;
        sum.trained_bytes += bytes;
        if (is_large) sum.offloadable_elements += elements;
        if (properties.has_master && !param.fp32)
          sum.master_bytes += elements * static_cast<double>(dtype_bytes(DType::kF32));
      }
    });
  }
  return stages;
}

double BoundCalculator::update_seconds(double bytes, const Layout& layout) const {
  const Rates& rates = rates_for(task_, layout);
  const double here = rates.memory_bandwidth / least_slowdown(rates, "update");
  return bytes / std::max(here, task_.machine.has_gpus ? task_.machine.host_memory_bandwidth : 0);
}

/// Returns the minimum seconds for each byte of a collective; the time is at least proportional to
/// the bytes.
double BoundCalculator::seconds_per_byte(std::string_view kind, int64_t ranks, NodeSpan node_span) {
  const auto [known, added] = seconds_per_byte_.try_emplace({kind, ranks, node_span}, 0);
  if (added)
    known->second =
        collective_seconds_lower_bound(task_.machine, kind, 1, static_cast<int>(ranks), node_span);
  return known->second;
}

double BoundCalculator::collective_seconds_of(const std::vector<StageParameters>& stages,
                                              const Layout& layout,
                                              const StateProperties& properties) {
  const int64_t ranks = layout.zero == 0 ? layout.data : layout.shards();
  if (ranks == 1) return 0;
  const NodeSpan node_span = node_span_of(ranks, layout.tensor, layout, task_.nodes);
  const double all_reduce = seconds_per_byte("all_reduce", ranks, node_span),
               reduce_scatter = seconds_per_byte("reduce_scatter", ranks, node_span),
               all_gather = seconds_per_byte("all_gather", ranks, node_span);
  double largest = 0;
  for (const StageParameters& stage : stages) {
    const double gradients = stage.trained_elements * properties.communicated_bytes;
    const double whole = all_reduce * gradients;
    const double sharded = std::min(reduce_scatter * gradients, whole);
    double seconds = whole;
    // At stages 1 and 2 the bound is the faster of an all-reduce of whole gradients, and a
    // reduce-scatter with an all-gather of the updated weights.
    if (layout.zero == 1 || layout.zero == 2)
      seconds = std::min(whole, sharded + all_gather * stage.trained_bytes);
    if (layout.zero == 3)
      seconds = sharded + (properties.has_secondary_shards ? 0 : all_gather * stage.sharded_bytes);
    largest = std::max(largest, seconds);
  }
  return largest;
}

/// Computes the maximum number of bytes that a stage has saved at one time, over all micro-batches
/// in flight and all its chunks. The values of a forward pass are saved until the backward pass; if
/// backward is split, until the input gradients and the weight gradients that read them are
/// computed.
int64_t BoundCalculator::max_saved_bytes(const ModelCosts& costs, const PipelineLayout& pipeline,
                                         int stage, const Layout& layout) const {
  std::vector<GraphCost> chunks;
  for (int chunk = 0; chunk < pipeline.chunks(); ++chunk) {
    const LayerRange range = pipeline.layers_of(pipeline.model_chunk_of(stage, chunk),
                                                static_cast<int32_t>(costs.model.layers.size()));
    chunks.push_back(costs.cost_of(range));
  }
  if (pipeline.stages() == 1) return chunks.front().saved;
  const bool is_split = splits_backward(layout);
  if (traits_of(layout.schedule).keeps_all_micro_batches)
    return chunks.front().saved * layout.accumulation;
  int64_t now = 0, largest = 0;
  for (const ScheduleAction& action :
       make_schedule(layout.schedule, pipeline.stages(), pipeline.chunks(), stage,
                     static_cast<int32_t>(sampled_micro_batches(layout)))) {
    const GraphCost& chunk = chunks[static_cast<size_t>(action.chunk)];
    const int64_t forward =
        is_split ? chunk.saved_for_weights_bytes + chunk.saved_for_inputs_bytes : chunk.saved;
    if (action.phase == Phase::kForward) now += forward;
    if (action.phase == Phase::kBackward) now -= forward;
    if (action.phase == Phase::kInputGrad)
      now += chunk.deferred_bytes - chunk.saved_for_inputs_bytes;
    if (action.phase == Phase::kWeightGrad)
      now -= chunk.deferred_bytes + chunk.saved_for_weights_bytes;
    largest = std::max(largest, now);
  }
  return largest;
}

MemoryNeed BoundCalculator::memory_of(const StageParameters& stage, int64_t saved,
                                      const Layout& layout,
                                      const StateProperties& properties) const {
  const auto shards = static_cast<double>(layout.shards());
  const bool keeps_optimizer = layout.optimizer_offload == OffloadDevice::kNone;
  const bool shards_parameters = layout.zero == 3;
  // Returns whether state with this offload target counts as device memory. On CPUs, main memory is
  // the device memory.
  const auto counts = [&](OffloadDevice target) {
    return target == OffloadDevice::kNone ||
           (!task_.machine.has_gpus && target == OffloadDevice::kCpu);
  };
  double device = 0, host = 0;
  const double parameters = stage.bytes / (shards_parameters ? shards : 1);
  if (counts(layout.parameter_offload)) device += parameters;
  const double moments = stage.trained_elements * properties.state_bytes / shards;
  if (keeps_optimizer) device += moments + stage.master_bytes / shards;
  // The master copy is left out of the bound, because it exists only for some targets of offloaded
  // weights.
  if (!keeps_optimizer && counts(layout.optimizer_offload)) device += moments;
  if (task_.machine.has_gpus && layout.optimizer_offload == OffloadDevice::kCpu)
    host +=
        properties.offloaded_share * stage.offloadable_elements * properties.state_bytes / shards;
  if (task_.machine.has_gpus && layout.parameter_offload == OffloadDevice::kCpu)
    host += stage.sharded_bytes / shards;
  double gradients =
      stage.trained_elements * properties.gradient_bytes / (layout.zero >= 2 ? shards : 1);
  if (!keeps_optimizer) gradients = 0;
  device += std::max(gradients, static_cast<double>(saved));
  return {static_cast<int64_t>(device), static_cast<int64_t>(host)};
}

BoundCalculator::SharedCosts& BoundCalculator::shared_costs_of(const Layout& layout) {
  // Layouts that differ only in their state share costs.
  Layout stateless = layout;
  stateless.replicas = 1;
  stateless.zero = 0;
  stateless.optimizer_offload = stateless.parameter_offload = OffloadDevice::kNone;
  const auto [known, added] = shared_costs_.try_emplace(stateless);
  SharedCosts& shared = known->second;
  if (!added) return shared;
  try {
    shared.costs = &model_costs_of(layout);
    shared.pipeline = &stage_partition_of(*shared.costs, layout);
    const PipelineLayout& pipeline = shared.pipeline->layout;
    shared.compute_seconds = compute_seconds(*shared.costs, pipeline, layout);
    for (int stage = 0; stage < pipeline.stages(); ++stage)
      shared.saved.push_back(max_saved_bytes(*shared.costs, pipeline, stage, layout));
  } catch (...) {
    shared_costs_.erase(known);
    throw;
  }
  return shared;
}

LayoutBound BoundCalculator::compute_bound(const Layout& layout,
                                           const StateProperties& properties) {
  const SharedCosts& shared = shared_costs_of(layout);
  const std::vector<StageParameters>& stages =
      stage_parameters_of(*shared.costs, *shared.pipeline, properties);
  LayoutBound bound;
  double update = 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const MemoryNeed memory = memory_of(stages[stage], shared.saved[stage], layout, properties);
    bound.memory.device_bytes = std::max(bound.memory.device_bytes, memory.device_bytes);
    bound.memory.host_bytes = std::max(bound.memory.host_bytes, memory.host_bytes);
    update = std::max(update, 2 * stages[stage].trained_elements * properties.state_bytes /
                                  static_cast<double>(layout.shards()));
  }
  const double compute = shared.compute_seconds + update_seconds(update, layout),
               communication = collective_seconds_of(stages, layout, properties);
  bound.seconds = (1 - kSlack) * std::max(compute, communication);
  bound.unoverlapped_seconds = compute + communication;
  return bound;
}

}  // namespace ftrun

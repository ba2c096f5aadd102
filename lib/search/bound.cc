#include "search/bound.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "base/dtype.h"
#include "graph/collective_attrs.h"
#include "graph/op_spec.h"
#include "graph/scratch.h"
#include "machine/least_exchange.h"
#include "machine/op_time.h"
#include "program/kept_states.h"
#include "program/pipeline_plan.h"
#include "program/schedule_timeline.h"
#include "program/training_model.h"
#include "search/rank_place.h"

namespace ftrun {
namespace {

/// An instruction's time is rounded to a picosecond, and each operation may be one of its own.
constexpr double kRounding = 1e-12;

/// The share of a bound that sums of floating-point numbers may be off by.
constexpr double kSlack = 1e-9;

const Rates& rates_for(const SearchTask& task, const Layout& layout) {
  return task.machine.rates_of(
      task.machine.has_gpus ? 1 : static_cast<int>(ranks_of_node(layout, task.nodes)));
}

/// Seconds of the operations of a list that kernels run. Exchange in between keeps a GPU from
/// computing two of them in one pass.
double kernel_seconds(const SearchTask& task, const Rates& rates, const LayerGraph& graph,
                      const std::vector<Op>& list) {
  double seconds = 0;
  size_t first = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && !is_collective(list[i].kind)) continue;
    const auto part = std::span(list).subspan(first, i - first);
    seconds += list_seconds(task.machine, rates, graph, part) -
               kRounding * static_cast<double>(part.size());
    first = i + 1;
  }
  return seconds;
}

/// Seconds that tensor ranks exchange for a list.
double list_exchange(const SearchTask& task, const LayerGraph& graph, const std::vector<Op>& list,
                     Crossing crossing) {
  double seconds = 0;
  for (const Op& op : list) {
    if (!is_collective(op.kind)) continue;
    const OpSpec& spec = op_spec(op.kind);
    const OpCollective collective = spec.collective;
    // Operations are called as their exchange is; in a shift each rank sends once.
    const std::string_view name = collective == OpCollective::kShift ? "send" : spec.name;
    const ValueId whole = collective == OpCollective::kReduceScatter ? op.in[0] : op.out[0];
    const auto ranks = static_cast<int>(op.attrs.get<CollectiveAttrs>().ranks);
    seconds += least_exchange_seconds(
        task.machine, name, static_cast<double>(graph.at(whole).bytes()), ranks, crossing);
  }
  return seconds;
}

/// The bytes that an element's optimizer states take at least.
double state_bytes(const Config& config) {
  double coded = 0, plain = 0;
  bool has_coded = false;
  for (const KeptState& state : kept_states(config)) {
    const auto bytes = static_cast<double>(dtype_bytes(state.dtype));
    has_coded |= state.coded;
    (state.coded ? coded : plain) += bytes / static_cast<double>(state.block);
  }
  return has_coded ? std::min(coded, plain) : plain;
}

bool has_master(const Config& config) {
  return training_dtype(config) != ConfigDtype::kFp32 &&
         !(config.bf16.enabled && config.bf16.bf16_master_weights_and_grads);
}

double least_slowdown(const Rates& rates, const std::string& kind) {
  const auto found = rates.slowdowns.find(kind);
  if (found == rates.slowdowns.end()) return rates.slowdown;
  double least = found->second.points().front().second;
  for (const auto& [x, y] : found->second.points()) least = std::min(least, y);
  return least;
}

/// Calls `each` with the layers of a stage.
template <class Each>
void for_layers(const PipelineLayout& cut, int stage, int32_t layers, const Each& each) {
  for (int chunk = 0; chunk < cut.chunks(); ++chunk) {
    const LayerRange range = cut.layers(cut.part_of(stage, chunk), layers);
    for (int32_t l = range.first; l < range.end; ++l) each(static_cast<size_t>(l));
  }
}

/// Says whether weight gradients have lists of their own.
bool runs_apart(const Layout& layout) {
  return layout.pipeline > 1 &&
         (layout.schedule == PipelineSchedule::kZbH1 || layout.schedule == PipelineSchedule::kZbV);
}

}  // namespace

Bounds::GraphCost Bounds::cost_of(const LayerGraph& graph, const Layout& layout) const {
  const Rates& rates = rates_for(task_, layout);
  const Crossing crossing = crossing_of(layout.tensor, 1, layout, task_.nodes);
  const auto kernels = [&](const std::vector<Op>& list) {
    return kernel_seconds(task_, rates, graph, list);
  };
  GraphCost cost;
  cost.forward = kernels(graph.forward);
  cost.backward = kernels(graph.backward);
  cost.apart = kernels(graph.input_grad) + kernels(graph.weight_grad);
  cost.exchange = list_exchange(task_, graph, graph.forward, crossing) +
                  list_exchange(task_, graph, graph.backward, crossing);
  cost.saved = plan_saved(graph).bytes;
  return cost;
}

Bounds::Card& Bounds::card_of(const Layout& layout, const Config& config) {
  const auto [found, added] =
      cards_.try_emplace({layout.tensor, layout.micro_batch, layout.recompute, layout.ranks()});
  Card& card = found->second;
  if (!added) return card;
  try {
    card.model = training_model(config, task_.model, 0);
    for (const LayerGraph& graph : card.model.graphs) card.graphs.push_back(cost_of(graph, layout));
  } catch (...) {
    cards_.erase(found);
    throw;
  }
  return card;
}

/// A stage begins when a micro-batch has passed the layers before its first one, computes all its
/// actions one after another, and, where its last one is a gradient with respect to its input,
/// others go on from there.
double Bounds::compute_seconds(const Card& card, const PipelineLayout& cut,
                               const Layout& layout) const {
  const auto layers = static_cast<int32_t>(card.model.layers.size());
  const bool apart = runs_apart(layout);
  double most = 0;
  for (int stage = 0; stage < cut.stages(); ++stage) {
    double one = 0, exchange = 0;
    for_layers(cut, stage, layers, [&](size_t l) {
      const GraphCost& cost = card.of_layer(l);
      one += cost.forward + (apart ? cost.apart : cost.backward);
      exchange += cost.exchange;
    });
    int first_part = cut.part_of(stage, 0);
    for (int chunk = 1; chunk < cut.chunks(); ++chunk)
      first_part = std::min(first_part, cut.part_of(stage, chunk));
    double around = 0;
    if (cut.stages() > 1)
      for (int32_t l = 0; l < cut.layers(first_part, layers).first; ++l)
        around += card.of_layer(static_cast<size_t>(l)).forward +
                  (apart ? 0 : card.of_layer(static_cast<size_t>(l)).backward);
    const auto times = static_cast<double>(layout.accumulation);
    most = std::max(most, std::max(around + times * one, times * exchange));
  }
  return most;
}

Bounds::StageWeights Bounds::weights_of(const Card& card, const PipelineLayout& cut, int stage,
                                        const Config& config) const {
  StageWeights sum;
  std::set<TensorId> seen;
  for_layers(cut, stage, static_cast<int32_t>(card.model.layers.size()), [&](size_t l) {
    const Layer& layer = card.model.layers[l];
    for (const GraphParam& param : layer.params) {
      if (!seen.insert(param.tensors.front()).second) continue;
      const auto bytes = static_cast<double>(card.model.graph_of(layer).at(param.value).bytes());
      int64_t all = 0, most = 0;
      for (const TensorId id : param.tensors) {
        const int64_t count = card.model.tensor(id).local_numel();
        all += count;
        most = std::max(most, count);
      }
      const auto elements = static_cast<double>(all);
      sum.bytes += bytes;
      const bool is_large = most > config.zero.param_persistence_threshold;
      if (is_large && !param.fp32) sum.sharded_bytes += bytes;
      if (!card.model.tensor(param.tensors.front()).trainable) continue;
      sum.trained += elements;
      sum.trained_bytes += bytes;
      if (has_master(config) && !param.fp32)
        sum.master_bytes += elements * static_cast<double>(dtype_bytes(DType::kF32));
    }
  });
  return sum;
}

double Bounds::update_seconds(double bytes, const Layout& layout) const {
  const Rates& rates = rates_for(task_, layout);
  const double here = rates.memory / least_slowdown(rates, "update");
  return bytes / std::max(here, task_.machine.has_gpus ? task_.machine.host_memory : 0);
}

double Bounds::exchange_seconds_of(const std::vector<StageWeights>& stages, const Layout& layout,
                                   const Config& config) const {
  const int64_t ranks = layout.zero == 0 ? layout.data : layout.shards();
  if (ranks == 1) return 0;
  const Crossing crossing = crossing_of(ranks, layout.tensor, layout, task_.nodes);
  const auto least = [&](std::string_view kind, double bytes) {
    return least_exchange_seconds(task_.machine, kind, bytes, static_cast<int>(ranks), crossing);
  };
  double most = 0;
  for (const StageWeights& weights : stages) {
    const double gradients =
        weights.trained * static_cast<double>(dtype_bytes(dtype_of(communication_dtype(config))));
    const double whole = least("all_reduce", gradients);
    const double cut_up = std::min(least("reduce_scatter", gradients), whole);
    double seconds = whole;
    // Small units are not cut below stage 3.
    if (layout.zero == 1 || layout.zero == 2)
      seconds = std::min(whole, cut_up + least("all_gather", weights.trained_bytes));
    if (layout.zero == 3)
      seconds =
          cut_up +
          (config.zero.hpz_partition_size > 1 ? 0 : least("all_gather", weights.sharded_bytes));
    most = std::max(most, seconds);
  }
  return most;
}

/// A stage keeps what all micro-batches under way have saved until its first backward pass ends.
int64_t Bounds::saved_of(const Card& card, const PipelineLayout& cut, int stage,
                         const Layout& layout) const {
  int64_t saved = 0;
  for_layers(cut, stage, static_cast<int32_t>(card.model.layers.size()),
             [&](size_t l) { saved += card.of_layer(l).saved; });
  if (cut.stages() == 1) return saved;
  // The lists that run apart save in two buffers, and chunks are not all under way at once.
  if (runs_apart(layout) || cut.chunks() > 1) return 0;
  return saved * most_in_flight(make_schedule(layout.schedule, cut.stages(), cut.chunks(), stage,
                                              static_cast<int32_t>(layout.accumulation)));
}

int64_t Bounds::memory_of(const StageWeights& weights, int64_t saved, const Layout& layout,
                          const Config& config) const {
  const auto shards = static_cast<double>(layout.shards());
  const bool keeps_optimizer = layout.optimizer == OffloadDevice::kNone;
  const bool shards_parameters = layout.zero == 3;
  // Small units stay on a GPU wherever the others lie; processors have one memory for both places.
  const auto counts = [&](OffloadDevice place) {
    return place == OffloadDevice::kNone ||
           (!task_.machine.has_gpus && place == OffloadDevice::kCpu);
  };
  double device = 0;
  const double parameters = weights.bytes / (shards_parameters ? shards : 1);
  if (counts(layout.parameters)) device += parameters;
  const double optimizer = (weights.trained * state_bytes(config) + weights.master_bytes) / shards;
  if (keeps_optimizer) device += optimizer;
  // A copy of the weights beside it depends on where these are.
  if (!keeps_optimizer && counts(layout.optimizer))
    device += weights.trained * state_bytes(config) / shards;
  double gradients = weights.trained *
                     static_cast<double>(dtype_bytes(dtype_of(gradient_dtype(config)))) /
                     (layout.zero >= 2 ? shards : 1);
  if (!keeps_optimizer) gradients = 0;
  device += std::max(gradients, static_cast<double>(saved));
  return static_cast<int64_t>(device);
}

Bound Bounds::of(const Layout& layout, const Config& config) {
  Card& card = card_of(layout, config);
  PipelineLayout& cut = card.cuts[{layout.pipeline, layout.chunks, layout.schedule}];
  if (cut.stages() != layout.pipeline) cut = pipeline_layout(config, card.model);
  Bound bound;
  double update = 0;
  std::vector<StageWeights> stages;
  for (int stage = 0; stage < cut.stages(); ++stage) {
    const StageWeights& weights = stages.emplace_back(weights_of(card, cut, stage, config));
    const int64_t saved = saved_of(card, cut, stage, layout);
    bound.memory.device = std::max(bound.memory.device, memory_of(weights, saved, layout, config));
    update = std::max(
        update, 2 * weights.trained * state_bytes(config) / static_cast<double>(layout.shards()));
  }
  bound.seconds =
      (1 - kSlack) * std::max(compute_seconds(card, cut, layout) + update_seconds(update, layout),
                              exchange_seconds_of(stages, layout, config));
  return bound;
}

}  // namespace ftrun

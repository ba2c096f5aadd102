#include "sim/instr_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "graph/layer_graph.h"
#include "graph/op_spec.h"
#include "machine/op_time.h"
#include "program/layer_instr.h"

namespace ftrun {
namespace {

/// Returns the bytes of one call of a collective, as machine files count them: the size of the
/// whole buffer.
double communicated_bytes(const Instr& instr, size_t call) {
  return static_cast<double>(instr.full_ranges()[call].bytes);
}

/// Names a collective or transfer as machine files do. In a shift each rank sends once. Counted
/// rows cost as much as an all-to-all of full blocks.
std::string_view curve_name(InstrKind kind) {
  if (kind == InstrKind::kReceive || kind == InstrKind::kShift) return "send";
  return instr_name(kind == InstrKind::kCountedAllToAll ? InstrKind::kAllToAll : kind);
}

/// Returns whether an instruction runs the first operations of a backward list. Collectives before
/// them are instructions of their own.
bool begins_backward(const LayerGraph& graph, const Instr& instr) {
  if (instr.kind != InstrKind::kBackward && instr.kind != InstrKind::kInputGrad) return false;
  const std::vector<Op>& op_list = op_list_of(graph, instr.kind);
  return std::all_of(op_list.begin(), op_list.begin() + instr.ops().first_op,
                     [](const Op& op) { return op_spec(op.kind).collective.has_value(); });
}

}  // namespace

std::string instr_slowdown_key(const Instr& instr) {
  return std::string(traits_of(instr.kind).slowdown_key);
}

int64_t total_bytes(const std::vector<BufferRange>& ranges) {
  int64_t bytes = 0;
  for (const BufferRange& range : ranges) bytes += range.bytes;
  return bytes;
}

double memory_bytes(const Instr& instr) {
  const InstrTraits& traits = traits_of(instr.kind);
  return static_cast<double>(traits.read_passes * total_bytes(instr.reads) +
                             traits.write_passes * total_bytes(instr.writes));
}

InstrCostModel::InstrCostModel(const Machine& machine, int ranks_per_node, const Program& program,
                               const ModelDescription& model, std::vector<int> ranks_on_node,
                               double slow_factor)
    : machine_(machine),
      rates_(machine.rates_of(machine.has_gpus ? 1 : ranks_per_node)),
      program_(program),
      model_(model),
      ranks_per_node_(ranks_per_node),
      ranks_on_node_(std::move(ranks_on_node)),
      slow_factor_(slow_factor) {}

double InstrCostModel::seconds_of_list(const Instr& instr) {
  const LayerOps& ops = instr.ops();
  const auto [known, added] =
      list_seconds_.try_emplace({instr.kind, ops.graph, ops.first_op, ops.op_count}, 0);
  if (added) {
    const LayerGraph& graph = model_.graphs[static_cast<size_t>(ops.graph)];
    known->second = list_seconds(machine_, rates_, graph, ops_of(graph, instr));
    if (machine_.recomputes_whole_layers && graph.recompute == RecomputeLevel::kFull &&
        begins_backward(graph, instr))
      known->second += seconds_not_recomputed(graph);
  }
  return known->second;
}

/// Returns the number of ranks on a node of the group along the axis of a layer's collective.
int InstrCostModel::ranks_on_node_along(const CollectiveAttrs& over) const {
  for (size_t g = 0; g < program_.groups.size(); ++g)
    if (program_.groups[g].members.runs_along(over.axis) &&
        program_.groups[g].members.size() == over.ranks)
      return ranks_on_node_[g];
  return static_cast<int>(over.ranks);
}

double InstrCostModel::seconds_of_op(const LayerGraph& graph, const Op& op) const {
  const std::optional<CollectiveKind> collective = op_spec(op.kind).collective;
  if (!collective) return list_seconds(machine_, rates_, graph, std::span(&op, 1));
  const auto& over = op.attrs.get<CollectiveAttrs>();
  const int64_t bytes = std::max(graph.at(op.in[0]).bytes(), graph.at(op.out[0]).bytes());
  return collective_seconds(machine_, curve_name(instr_kind(*collective)),
                            static_cast<double>(bytes), static_cast<int>(over.ranks),
                            ranks_on_node_along(over));
}

/// Returns the seconds of the forward operations of a layer, collectives included, that its
/// backward list does not recompute: for each kind of operation, those of the forward list less
/// those that run again.
double InstrCostModel::seconds_not_recomputed(const LayerGraph& graph) const {
  std::map<OpKind, double> left;
  for (const Op& op : graph.forward) left[op.kind] += seconds_of_op(graph, op);
  for (const Op& op : graph.backward)
    if (is_recomputed(graph.at(op.out[0]))) left[op.kind] -= seconds_of_op(graph, op);
  double seconds = 0;
  for (const auto& [kind, more] : left) seconds += std::max(more, 0.0);
  return seconds;
}

/// Returns the seconds in which an instruction reads and writes its bytes. Main memory next to a
/// GPU has its own rate.
double InstrCostModel::seconds_of_bytes(const Instr& instr) const {
  const std::string kind = instr_slowdown_key(instr);
  if (kind.empty()) return 0;
  const double bytes = memory_bytes(instr);
  if (!machine_.has_gpus || !uses_tier(instr, Tier::kHost))
    return seconds_with_slowdown(rates_, kind, bytes / rates_.memory_bandwidth);
  if (machine_.host_memory_bandwidth == 0)
    throw Error(ExitCode::kUsage,
                cat("the machine ", machine_.name, " has no host_memory, in which ", kind, " runs"),
                "add host_memory: 200 GB/s to the machine file, or plan without offload");
  return bytes / machine_.host_memory_bandwidth;
}

bool InstrCostModel::uses_tier(const Instr& instr, Tier tier) const {
  for (const auto* ranges : {&instr.reads, &instr.writes})
    for (const BufferRange& range : *ranges)
      if (program_.at(range.buffer).tier == tier) return true;
  return false;
}

double InstrCostModel::seconds_of_copy(const Instr& instr) const {
  const Tier from = program_.at(instr.reads[0].buffer).tier,
             to = program_.at(instr.writes[0].buffer).tier;
  const auto bytes = static_cast<double>(std::max(instr.reads[0].bytes, instr.writes[0].bytes));
  if (from == Tier::kDisk || to == Tier::kDisk) {
    const double rate =
        from == Tier::kDisk ? machine_.disk_read_bandwidth : machine_.disk_write_bandwidth;
    if (rate == 0)
      throw Error(ExitCode::kUsage, cat("the machine ", machine_.name, " has no rates of a disk"),
                  "add disk: {read: 2 GB/s, write: 1 GB/s} to the machine file");
    // All ranks of a node read and write its one disk in the same phases of a step.
    return bytes * ranks_per_node_ / rate;
  }
  if (!machine_.has_gpus || from == to) return seconds_of_bytes(instr);
  if (machine_.host_link.bandwidth == 0)
    throw Error(
        ExitCode::kUsage,
        cat("the machine ", machine_.name,
            " has no links.host, the link between a GPU and main memory"),
        "add host: {latency: 10 us, bandwidth: 50 GB/s} to its links, or plan without offload");
  return machine_.host_link.latency_seconds + bytes / machine_.host_link.bandwidth;
}

double InstrCostModel::seconds_of_collective(const Instr& instr) const {
  const RankGroup& group = program_.group(instr.group()).members;
  const int ranks_on_node = ranks_on_node_[static_cast<size_t>(instr.group())];
  double seconds = 0;
  for (size_t call = 0; call < std::max(instr.reads.size(), instr.writes.size()); ++call)
    seconds += collective_seconds(machine_, curve_name(instr.kind), communicated_bytes(instr, call),
                                  group.size(), ranks_on_node);
  return seconds;
}

InstrCost InstrCostModel::cost_of(const Instr& instr) {
  double seconds = 0;
  int busy_cores = machine_.has_gpus ? 0 : 1;
  if (instr.runs_ops()) {
    seconds = seconds_of_list(instr);
    busy_cores *= rates_.threads;
  } else if (instr.communicates()) {
    seconds = seconds_of_collective(instr);
  } else if (instr.kind == InstrKind::kCopy) {
    seconds = seconds_of_copy(instr);
    if (instr.lane == Lane::kDisk) busy_cores = 0;
  } else {
    seconds = seconds_of_bytes(instr);
    if (instr.lane == Lane::kCompute) busy_cores *= rates_.threads;
  }
  if (!instr.communicates()) seconds *= slow_factor_;
  constexpr double kMaxSeconds = 1e5;
  if (!(seconds < kMaxSeconds))
    throw Error(ExitCode::kUsage,
                cat("on the machine ", machine_.name, " ", instr_label(instr), " would take ",
                    format_number("%.3g", seconds), " s"),
                "correct the rates in the machine file");
  return {std::llround(seconds * kPicosecondsPerSecond), busy_cores};
}

}  // namespace ftrun

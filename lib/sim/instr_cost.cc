#include "sim/instr_cost.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "machine/op_time.h"
#include "program/layer_instr.h"

namespace ftrun {
namespace {

double sum_of_bytes(const std::vector<Range>& ranges) {
  double bytes = 0;
  for (const Range& range : ranges) bytes += static_cast<double>(range.bytes);
  return bytes;
}

/// Says whether ranks of a group lie on several nodes, which hold so many ranks each in turn.
bool crosses_nodes(const RankGroup& group, int ranks_of_node) {
  return group.ranks.front() / ranks_of_node != group.ranks.back() / ranks_of_node;
}

/// Bytes of a collective's call: the whole of what all ranks have.
double exchanged_bytes(const Instr& instr, size_t call) {
  const bool by_reads = instr.kind == InstrKind::kReduceScatter || instr.kind == InstrKind::kSend;
  return static_cast<double>((by_reads ? instr.reads : instr.writes)[call].bytes);
}

std::string_view exchange_name(InstrKind kind) {
  return kind == InstrKind::kReceive ? "send" : instr_name(kind);
}

}  // namespace

std::string rated_kind(const Instr& instr) {
  switch (instr.kind) {
    case InstrKind::kClear:
      return "clear";
    case InstrKind::kCopy:
      return "copy";
    case InstrKind::kAccumulate:
      return "accumulate";
    case InstrKind::kGradientNorm:
      return "gradient_norm";
    case InstrKind::kMeasure:
    case InstrKind::kUpdate:
      return "update";
    default:
      return "";
  }
}

double memory_bytes(const Instr& instr) {
  const double reads = sum_of_bytes(instr.reads), writes = sum_of_bytes(instr.writes);
  switch (instr.kind) {
    case InstrKind::kGradientNorm:
      return reads;
    case InstrKind::kClear:
      return writes;
    case InstrKind::kAccumulate:
    case InstrKind::kUpdate:
      return reads + 2 * writes;
    default:
      return reads + writes;
  }
}

InstrCosts::InstrCosts(const Machine& machine, int ranks_of_node, const Program& program,
                       const ModelDescription& model)
    : machine_(machine),
      rates_(machine.rates_of(machine.has_gpus ? 1 : ranks_of_node)),
      ranks_of_node_(ranks_of_node),
      program_(program),
      model_(model) {}

double InstrCosts::seconds_of_list(const Instr& instr) {
  const LayerOps& ops = instr.ops();
  const auto [known, added] =
      lists_.try_emplace({instr.kind, ops.graph, ops.first_op, ops.op_count}, 0);
  if (added) {
    const LayerGraph& graph = model_.graphs[static_cast<size_t>(ops.graph)];
    known->second = list_seconds(machine_, rates_, graph, ops_of(graph, instr));
  }
  return known->second;
}

double InstrCosts::seconds_of_bytes(const Instr& instr) const {
  const std::string kind = rated_kind(instr);
  return kind.empty() ? 0 : slowed(rates_, kind, memory_bytes(instr) / rates_.memory);
}

double InstrCosts::seconds_of_copy(const Instr& instr) const {
  const bool reads_disk = program_.at(instr.reads[0].buffer).tier == Tier::kNvme;
  const bool writes_disk = program_.at(instr.writes[0].buffer).tier == Tier::kNvme;
  if (!reads_disk && !writes_disk) return seconds_of_bytes(instr);
  const double rate = reads_disk ? machine_.disk_read : machine_.disk_write;
  if (rate == 0)
    throw Error(ExitCode::kUsage, cat("the machine ", machine_.name, " has no rates of a disk"),
                "add disk: {read: 2 GB/s, write: 1 GB/s} to the machine file");
  return static_cast<double>((reads_disk ? instr.reads : instr.writes)[0].bytes) / rate;
}

double InstrCosts::seconds_of_exchange(const Instr& instr) const {
  const RankGroup& group = program_.group(instr.group()).ranks;
  const bool crosses = crosses_nodes(group, ranks_of_node_);
  double seconds = 0;
  for (size_t call = 0; call < std::max(instr.reads.size(), instr.writes.size()); ++call) {
    const double bytes = instr.kind == InstrKind::kReceive
                             ? static_cast<double>(instr.writes[call].bytes)
                             : exchanged_bytes(instr, call);
    seconds += exchange_seconds(machine_, exchange_name(instr.kind), bytes, group.size(), crosses);
  }
  return seconds;
}

InstrCost InstrCosts::of(const Instr& instr) {
  double seconds = 0;
  int threads = machine_.has_gpus ? 0 : 1;
  if (instr.runs_list()) {
    seconds = seconds_of_list(instr);
    threads *= rates_.threads;
  } else if (instr.communicates()) {
    seconds = seconds_of_exchange(instr);
  } else if (instr.kind == InstrKind::kCopy) {
    seconds = seconds_of_copy(instr);
    if (instr.lane == Lane::kDisk) threads = 0;
  } else {
    seconds = seconds_of_bytes(instr);
    if (instr.lane == Lane::kCompute) threads *= rates_.threads;
  }
  return {std::llround(seconds * kPicosecondsPerSecond), threads};
}

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/description.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/step_builder.h"

namespace ftrun {

/// TrafficRow holds the calls and bytes of one kind of collective over one group.
struct TrafficRow {
  InstrKind kind = InstrKind::kAllReduce;
  GroupId group = kNoGroup;
  /// The axes of the mesh along which the group runs ("data"), and its number of ranks.
  std::string axes;
  int ranks = 1;
  /// The number of calls of the communicator, one for each range.
  int64_t calls = 0;
  int64_t bytes = 0;
};

/// Traffic holds the bytes that a rank sends in one run of a program (in a finite step), exactly as
/// its communicators count them (sent_bytes()): 2 B (N-1)/N for an all-reduce of B bytes among N
/// ranks, rounded down; (N-1) times the rank's own block for a reduce-scatter or an all-gather.
/// Sends, shifts and broadcasts are counted only on the rank that sends, so a rank may receive
/// another number of bytes.
struct Traffic {
  std::vector<TrafficRow> rows;
  int64_t bytes = 0;
};

Traffic program_traffic(const Program& program);

/// DiskTraffic holds the bytes that a program's copies move between memory and the disk tier in one
/// run.
struct DiskTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
};
DiskTraffic disk_traffic(const Program& program);

/// Returns whether an instruction gathers parameters for layers to read; a gather of updated
/// parameters writes to the persistent buffer instead.
bool gathers_parameters(const Program& program, const Instr& instr);

/// TrafficDeviation is a reason why a rank sends more or less than theory says.
struct TrafficDeviation {
  std::string cause;
  int64_t bytes = 0;
};

/// TrafficTheory holds the bytes that a training step sends according to the theory of its ZeRO
/// stage (Rajbhandari et al. 2020, "ZeRO", section 7): 2 Psi (N-1)/N elements a rank at stages 0 to
/// 2, 3 Psi (N-1)/N at stage 3, with Psi parameters and N ranks that share one copy of the state.
/// With secondary shards among h ranks 2 Psi (N-1)/N + Psi (h-1)/h (hierarchical partitioning of
/// Wang et al. 2023, "ZeRO++").
struct TrafficTheory {
  int zero_stage = 0;
  int ranks = 1;
  /// The number of ranks h that share secondary shards; 1 = none.
  int secondary_shards = 1;
  /// The number of parameters, Psi.
  int64_t parameters = 0;
  int64_t bytes = 0;
  /// Deviations of the program from the theory, without those of 0 bytes.
  std::vector<TrafficDeviation> deviations;
};

/// Compares a program with the theory. `program` is the training step built from the other three
/// arguments.
TrafficTheory compare_traffic_with_theory(const Program& program, const ModelDescription& model,
                                          const Partition& partition, const StepOptions& options);

/// Returns a table of the collectives, and below it the theory and the deviations, which add up to
/// the total of the table.
std::string planned_traffic_text(const Traffic& traffic, const TrafficTheory& theory);
/// Returns only the table, for programs that do not train.
std::string planned_traffic_text(const Traffic& traffic);

}  // namespace ftrun

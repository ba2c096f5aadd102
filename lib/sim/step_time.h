#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "sim/rank_class_plans.h"
#include "sim/timed_walk.h"
#include "sim/what_if.h"

namespace ftrun {

/// LinkBytes holds the bytes that a rank moves in a step, the largest number over all ranks for
/// each kind of link: sent within a node, sent between nodes, copied between a GPU and main memory,
/// and copied between memory and disk.
struct LinkBytes {
  int64_t intra_node = 0;
  int64_t inter_node = 0;
  int64_t to_host = 0;
  int64_t from_host = 0;
  int64_t disk_read = 0;
  int64_t disk_written = 0;
};

/// GroupIdle holds the seconds that the compute lane waited for collectives along some axes
/// ("data").
struct GroupIdle {
  std::string axes;
  double seconds = 0;
};

/// IdleByLane holds the seconds in which the compute lane was idle, attributed to what ran in that
/// time: collectives (by the axes of their groups), other pipeline stages, copies between tiers,
/// the disk.
struct IdleByLane {
  std::vector<GroupIdle> groups;
  double stage_seconds = 0;
  double copy_seconds = 0;
  double disk_seconds = 0;

  /// Returns the seconds of waiting for all collectives.
  double collective_seconds() const;
};

/// StepTime is the predicted time of a training step in seconds: until the slowest rank ends
/// (`seconds`), and the parts of rank 0's time. On CPUs, where ranks that share cores wait
/// unequally, each part is a mean over the ranks of rank 0's pipeline stage.
struct StepTime {
  double seconds = 0;
  /// Seconds of operations of layers.
  double layer_seconds = 0;
  double update_seconds = 0;
  /// Seconds of all other work of the compute lane: norm, copies, clears.
  double other_seconds = 0;
  /// The seconds in which the compute lane was idle: waiting for collectives, other pipeline
  /// stages, copies between tiers, and the disk. Each wait is attributed to the last thing it
  /// waited for, as runs measure it.
  double collective_wait_seconds = 0;
  double pipeline_wait_seconds = 0;
  double copy_wait_seconds = 0;
  double disk_wait_seconds = 0;
  /// The idle seconds by what ran in that time, whatever the cause of the wait was.
  IdleByLane idle_by_lane;
  /// Seconds that each stage waits for other stages, on its rank that waits longest in a simulated
  /// step; only with a pipeline.
  std::vector<double> stage_wait_seconds;
  LinkBytes link_bytes;
  /// Floating-point operations per second that all ranks together could reach in matrix
  /// multiplications; 0: not known.
  double matmul_flop_rate = 0;
};

/// StepPart is a part of a step's time: "layers", "waits for collectives".
using StepPart = std::pair<const char*, double>;

/// Lists the parts of a rank's step, in seconds, including parts that take no time. For the rest of
/// the step the rank waits until other ranks end.
std::vector<StepPart> list_step_parts(const StepTime& time);

/// TimelineInstr is an instruction of a predicted or measured step, with its times.
struct TimelineInstr {
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};

/// RankTimeline holds the instructions that one rank runs in a step, with their times. `program`
/// points into the plans, which must outlive it.
struct RankTimeline {
  int rank = 0;
  const Program* program = nullptr;
  StepTime time;
  /// The instructions in the order in which they end, including those that take no time.
  std::vector<TimelineInstr> instrs;
};

/// StepTimeline holds the predicted step of the lowest rank of each class and of each slow rank,
/// sorted by rank.
struct StepTimeline {
  std::vector<RankTimeline> ranks;
  /// The time when the last rank ends.
  Picoseconds end = 0;
  /// The number of steps that were simulated, of which this is the first.
  int simulated_steps = 1;
};

/// RunConditions holds what a prediction assumes of a run besides its programs and the machine: the
/// number of nodes (each has the same number of ranks), the threads of a rank (0: as in the machine
/// file), and which ranks are slower than the others.
struct RunConditions {
  int64_t nodes = 1;
  int64_t threads = 0;
  std::vector<SlowRank> slow_ranks = {};
};

/// Predicts the time of a training step on a machine. It walks the programs of all ranks; each
/// instruction takes the time that the machine needs for its operations, bytes or communication.
/// GPU ranks that are alike are walked as one; a slow rank is walked separately. If ranks take
/// turns on cores, the prediction is the mean of several steps in which the times of instructions
/// vary (TimeVariation), and the timeline is that of the first. The prediction assumes that the
/// batch is loaded already, and that each sequence is full and holds one document. Fills
/// `timeline`, if given. Throws Error(kUsage) if the machine has another kind of device or lacks a
/// rate that the run needs, or if a slow rank is not a rank of the run.
StepTime predict_step(const RankClassPlans& class_plans, const Machine& machine,
                      const RunConditions& conditions, StepTimeline* timeline = nullptr);

/// Returns the lines that follow the first line of a prediction: one line for each part, and the
/// bytes over each kind of link.
std::string step_parts_text(const StepTime& time);

}  // namespace ftrun

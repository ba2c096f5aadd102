#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "sim/class_plans.h"
#include "sim/timed_walk.h"
#include "sim/what_if.h"

namespace ftrun {

/// LinkBytes are the bytes that ranks send in a step over the links of a node and of the cluster,
/// and move between a GPU and main memory and between memory and disk: of each, the most of any
/// rank.
struct LinkBytes {
  int64_t node = 0;
  int64_t cluster = 0;
  int64_t to_host = 0;
  int64_t from_host = 0;
  int64_t disk_read = 0;
  int64_t disk_written = 0;
};

/// GroupWait holds the seconds that the compute lane waited for collectives along some axes
/// ("dp_shard").
struct GroupWait {
  std::string axes;
  double seconds = 0;
};

/// Waits holds the seconds that the compute lane was idle, charged to what ran meanwhile:
/// collectives by the axes of their groups, other stages, copies between tiers, the disk.
struct Waits {
  std::vector<GroupWait> groups;
  double stages = 0;
  double copies = 0;
  double disk = 0;

  /// Returns the seconds for all collectives.
  double collectives() const;
};

/// The kinds of instructions that count as operations of layers, and as the update. Predicted and
/// measured times are divided alike.
inline constexpr std::array kLayerKinds{InstrKind::kForward, InstrKind::kBackward,
                                        InstrKind::kInputGrad, InstrKind::kWeightGrad};
inline constexpr std::array kUpdateKinds{InstrKind::kUpdate, InstrKind::kMeasure};

/// StepTime is the predicted time of a training step, in seconds: until the slowest rank ends, and
/// for rank 0 by its parts.
struct StepTime {
  double seconds = 0;
  /// Seconds of operations of layers.
  double layers = 0;
  double update = 0;
  /// Seconds of all other work of the compute lane: norm, copies, clears.
  double other = 0;
  /// The seconds in which the compute lane was idle, for collectives, other stages, copies between
  /// tiers and the disk, charged to what it waited for last, as runs measure it.
  double communication = 0;
  double stages = 0;
  double copies = 0;
  double disk = 0;
  /// The seconds in which the compute lane was idle, charged to what ran meanwhile.
  Waits waits;
  /// Seconds that each stage waits for other stages, of its rank that waits longest; only with a
  /// pipeline.
  std::vector<double> stage_waits;
  LinkBytes links;
  /// Floating-point operations a second that all ranks together could reach in matrix products; 0:
  /// not known.
  double products = 0;
};

/// StepPart is a part of a step's time: "layers", "waits for collectives".
using StepPart = std::pair<const char*, double>;

/// Lists the parts of a rank's step, in seconds, also those that take no time. In the rest of the
/// step it waits for other ranks to end.
std::vector<StepPart> parts_of(const StepTime& time);

/// RecordedInstr is an instruction that a rank ran in a step.
struct RecordedInstr {
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};

/// RecordedRank holds what one rank does in a step. The program is borrowed from the plans.
struct RecordedRank {
  int rank = 0;
  const Program* program = nullptr;
  StepTime time;
  /// The instructions in the order of their ends, also those that take no time.
  std::vector<RecordedInstr> instrs;
};

/// StepRecord holds what the lowest rank of each class, and each slow rank, does in a step, by
/// rank.
struct StepRecord {
  std::vector<RecordedRank> ranks;
  /// The time when the last of all ranks has ended.
  Picoseconds end = 0;
};

/// RunPlace specifies where a run's ranks are: the number of nodes, with equally many ranks on
/// each, the threads of a rank (0: as in the machine file), and which ranks are slower than the
/// others.
struct RunPlace {
  int64_t nodes = 1;
  int64_t threads = 0;
  std::vector<SlowRank> slow = {};
};

/// Predicts a step of the run on the machine, by a walk of all ranks' programs in which each
/// instruction takes the time of its operations, bytes or exchange there. GPU ranks that are alike
/// are walked as one; a slow one among them is walked by itself. The batch is assumed to be loaded,
/// and rows to be full and of one document. Fills `record`, if given. Throws Error(kUsage) where
/// the machine has another device or lacks a rate that the run needs, or where the run has no such
/// slow rank.
StepTime predict_step(const ClassPlans& all, const Machine& machine, const RunPlace& place,
                      StepRecord* record = nullptr);

/// Writes the parts of a prediction, a line each, and the bytes over links, to follow its first
/// line.
std::string step_parts_text(const StepTime& time);

}  // namespace ftrun

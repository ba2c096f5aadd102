#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "sim/class_plans.h"
#include "sim/timed_walk.h"
#include "sim/what_if.h"

namespace ftrun {

/// LinkBytes are what ranks send in a step over the links of a node and of the cluster, and move
/// between a GPU and main memory and between memory and disk: the most that any rank does of each.
struct LinkBytes {
  int64_t node = 0;
  int64_t cluster = 0;
  int64_t to_host = 0;
  int64_t from_host = 0;
  int64_t disk_read = 0;
  int64_t disk_written = 0;
};

/// GroupWait is how long compute waited for collectives along some axes ("dp_shard").
struct GroupWait {
  std::string axes;
  double seconds = 0;
};

/// Waits are how long compute stood still, charged to what ran meanwhile: collectives by the axes
/// of their groups, other stages, copies between tiers, the disk.
struct Waits {
  std::vector<GroupWait> groups;
  double stages = 0;
  double copies = 0;
  double disk = 0;

  /// The seconds for all collectives.
  double collectives() const;
};

/// StepTime is the predicted time of a training step, in seconds: until the slowest rank ends, and
/// of rank 0 by what it does.
struct StepTime {
  double seconds = 0;
  /// Operations of layers.
  double layers = 0;
  double update = 0;
  /// All else that compute does itself: norm, copies, clears.
  double other = 0;
  /// Compute stood still for collectives, for other stages, for copies between tiers, for the disk,
  /// all of it charged to what it waited for last, as runs measure it.
  double communication = 0;
  double stages = 0;
  double copies = 0;
  double disk = 0;
  /// The seconds in which compute stood still, charged to what ran in them.
  Waits waits;
  /// Seconds that compute of each stage waits for other stages, of its rank that waits longest; of
  /// a pipeline alone.
  std::vector<double> stage_waits;
  LinkBytes links;
  /// Floating-point operations a second of the products that all ranks could make; 0: not known.
  double products = 0;
};

/// StepPart is a part of a step's time: "layers", "waits for collectives".
using StepPart = std::pair<const char*, double>;

/// Lists the parts of a rank's step, in seconds, those that take nothing too. The rest of the step
/// it waits for other ranks to end.
std::vector<StepPart> parts_of(const StepTime& time);

/// RecordedInstr is an instruction that a rank ran in a step.
struct RecordedInstr {
  const Instr* instr = nullptr;
  Picoseconds begin = 0;
  Picoseconds end = 0;
};

/// RecordedRank is what one rank does in a step. The program is borrowed of the plans.
struct RecordedRank {
  int rank = 0;
  const Program* program = nullptr;
  StepTime time;
  /// The instructions in the order of their ends, those that take no time too.
  std::vector<RecordedInstr> instrs;
};

/// StepRecord is what the lowest rank of each class, and each slow rank, does in a step, by number.
struct StepRecord {
  std::vector<RecordedRank> ranks;
  /// The time when the last of all ranks has ended.
  Picoseconds end = 0;
};

/// RunPlace is where a run's ranks are: on so many nodes, as many on each, with so many threads
/// each (0: as the machine file has it), and which of them are slower than the others.
struct RunPlace {
  int64_t nodes = 1;
  int64_t threads = 0;
  std::vector<SlowRank> slow = {};
};

/// Predicts a step of the run on the machine, by a walk of all ranks' programs in which each
/// instruction takes what its operations, bytes or exchange take there. Ranks of GPUs that are
/// alike are walked as one; a slow one among them is walked for itself. A step's batch is taken as
/// loaded, rows as full and of one document. `record`, if given, is filled. Error(kUsage) where the
/// machine is of another device, lacks a rate that the run needs, or has no such slow rank.
StepTime predict_step(const ClassPlans& all, const Machine& machine, const RunPlace& place,
                      StepRecord* record = nullptr);

/// Writes the parts of a prediction, a line each, below its first line, and what goes over links.
std::string step_parts_text(const StepTime& time);

}  // namespace ftrun

#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "sim/class_plans.h"
#include "sim/timed_walk.h"

namespace ftrun {

/// StepTime is the predicted time of a training step, in seconds: until the slowest rank ends, and
/// of rank 0 by what it does.
struct StepTime {
  double seconds = 0;
  /// Operations of layers.
  double layers = 0;
  double update = 0;
  /// All else that compute does itself: norm, copies, clears.
  double other = 0;
  /// Compute stood still for collectives, for other stages, for copies between tiers, for the disk.
  double communication = 0;
  double stages = 0;
  double copies = 0;
  double disk = 0;
  /// Parts of `communication`, by the axes of the group ("dp_shard").
  std::map<std::string, double> communication_over;
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
  /// In the order of their ends, those that take no time too.
  std::vector<RecordedInstr> instrs;
};

/// StepRecord is what the lowest rank of each class does in a step, by number.
struct StepRecord {
  std::vector<RecordedRank> ranks;
  /// The time when the last of all ranks has ended.
  Picoseconds end = 0;
};

/// RunPlace is where a run's ranks are: on so many nodes, as many on each, with so many threads
/// each (0: as the machine file has it).
struct RunPlace {
  int64_t nodes = 1;
  int64_t threads = 0;
};

/// Predicts a step of the run on the machine, by a walk of all ranks' programs in which each
/// instruction takes what its operations, bytes or exchange take there. Ranks of GPUs that are
/// alike are walked as one. A step's batch is taken as loaded, rows as full and of one document.
/// `record`, if given, is filled. Error(kUsage) where the machine is of another device, or lacks a
/// rate that the run needs.
StepTime predict_step(const ClassPlans& all, const Machine& machine, const RunPlace& place,
                      StepRecord* record = nullptr);

/// The prediction as `ftrun plan` prints it: time by part, tokens a second, and model FLOPs
/// utilization by `flops_per_token` (Chowdhery et al. 2022, "PaLM", appendix B); 0: not known.
std::string step_time_text(const StepTime& time, const Machine& machine, int64_t tokens,
                           double flops_per_token);

}  // namespace ftrun

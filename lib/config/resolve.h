#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// ResolveContext holds what the config itself does not say.
struct ResolveContext {
  /// Ranks of the run (count_ranks).
  int64_t world_size = 1;
  /// The model's hidden size; sizes some of ZeRO's "auto" buckets.
  std::optional<int64_t> hidden_size;
  /// The samples of data.train are conversations (data/conversations.h).
  bool conversations = false;
  /// Optimizer steps of the run, if train.epochs decides them; known once data is counted.
  std::optional<int64_t> total_steps;
  /// The hardware has bf16, which "auto" precision may choose.
  bool bf16_hardware = false;
  bool fp16_hardware = false;
  /// GPUs that this process sees and this build can use: device: auto computes on them, if there is
  /// one for each of local_ranks.
  int gpus = 0;
  /// Ranks of this machine that share the GPUs this process sees: 1 if another launcher hands out
  /// GPUs.
  int64_t local_ranks = 1;
  /// Keys without which a run cannot start are required: model.path, data.train, a known "auto".
  bool for_training = false;
  /// The config is only planned, not trained on: data.train may still be missing.
  bool plans_only = false;
};

class WrittenConfig;

/// Resolution is a config with nothing left open.
struct Resolution {
  Config config;
  /// A printable line for every "auto" and every default that changes a run's numbers.
  std::vector<std::string> lines;
  /// Contradictions (errors) and notices, sorted by place.
  std::vector<Problem> problems;
  /// Valid wishes that cannot run in this build: exit code 3.
  std::vector<NotYet> not_yet;
  bool ok() const { return !has_errors(problems); }
};

/// Decides every value that is not written, or "auto", and checks keys against each other. Pure;
/// resolving an effective config again changes nothing.
Resolution resolve(const WrittenConfig& written, const ResolveContext& context);

/// Describes a schedule whose learning rate rises for longer than the run: "scheduler:
/// warmup_num_steps 100 > the run's 60 steps: training ends inside the warm-up". "" for any other.
std::string unfinished_rise(const SchedulerConfig& scheduler, int64_t steps);

/// Lists why a resolved config would be refused on the ranks it was resolved for, if it were
/// written so: keys that contradict each other, and features that cannot run in this build. For a
/// config changed after resolve(): the objections that were not there before come from the change.
std::set<std::string> objections(const Config& resolved);

}  // namespace ftrun

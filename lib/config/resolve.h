#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// ResolveContext holds facts that the config itself does not contain.
struct ResolveContext {
  /// The number of ranks of the run (count_ranks).
  int64_t world_size = 1;
  /// The model's hidden size, from which the "auto" sizes of some of ZeRO's buckets are computed.
  std::optional<int64_t> hidden_size;
  /// Says whether the documents of data.train are conversations (data/conversations.h).
  bool conversations = false;
  /// The number of GPUs that this process sees and this build can use. With device: auto, the run
  /// uses them if there is one for each of local_ranks.
  int gpus = 0;
  /// The number of ranks of this machine that share the GPUs that this process sees; 1 if another
  /// launcher assigns GPUs.
  int64_t local_ranks = 1;
  /// Says whether the keys without which a run cannot start (model.path, data.train) are required,
  /// and whether no "auto" may remain undecided.
  bool for_training = false;
  /// Says whether the config is only planned and not trained with: data.train may then be missing.
  bool plans_only = false;
};

class WrittenConfig;

/// ResolvedLine is a line to print about a resolved config.
struct ResolvedLine {
  /// The key, or the section, that the line is about; "" if it is about none.
  std::string key;
  std::string text;
};
std::vector<std::string> line_texts(const std::vector<ResolvedLine>& lines);

/// ResolvedConfig is the resolved config, with the decisions and the problems.
struct ResolvedConfig {
  Config config;
  /// Lines to print, one for every "auto" and for every default that changes a run's numbers.
  std::vector<ResolvedLine> lines;
  /// Contradictions (errors) and notices, sorted by place.
  std::vector<Problem> problems;
  /// Valid requests that this build cannot fulfill: exit code 3.
  std::vector<UnsupportedRequest> unsupported;
  bool ok() const { return !has_errors(problems); }
};

/// Decides the values that are not written or are "auto", except those that a rank finds out later
/// (Config), and checks keys against each other. The result depends on the arguments alone, with
/// one exception: a path that begins with "~" or "$" is an error only if the file system has no
/// such path (check_path in resolve_checks.cc). Writes nothing; resolving an effective config again
/// changes nothing.
ResolvedConfig resolve(const WrittenConfig& written, const ResolveContext& context);

/// Describes a schedule whose learning rate rises for longer than the run: "scheduler:
/// warmup_num_steps 100 > the run's 60 steps: training ends inside the warm-up". Returns "" for any
/// other schedule.
std::string unfinished_warmup_text(const SchedulerConfig& scheduler, int64_t steps);

/// Lists the reasons to refuse a resolved config on the ranks for which it was resolved, as if it
/// had been written like this: keys that contradict each other, and features that cannot run in
/// this build. It is for configs that are changed after resolve(): objections that were not there
/// before are caused by the change.
std::set<std::string> list_objections(const Config& resolved);

}  // namespace ftrun

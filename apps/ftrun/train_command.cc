#include <CLI/CLI.hpp>

#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/launch_variables.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "build_info.h"
#include "cluster/early_signals.h"
#include "commands.h"
#include "config/effective_json.h"
#include "config/write.h"
#include "config_source.h"
#include "elastic_notice.h"
#include "elastic_ranks.h"
#include "engine.h"
#include "output_checks.h"
#include "resource_checks.h"
#include "supervise.h"

namespace ftrun {
namespace {

struct TrainOptions {
  ConfigSource source;
  std::string resume;
  std::vector<std::string> allowed;
  std::optional<int> restarts;
  double stop_lead_seconds = 0;
  std::vector<std::string> arguments;
};

ResumeRequest resume_request(const TrainOptions& options) {
  ResumeRequest request;
  request.allowed = options.allowed;
  request.is_requested = !options.resume.empty();
  if (!request.is_requested || options.resume == "auto") return request;
  try {
    size_t used = 0;
    request.step = std::stoll(options.resume, &used);
    if (used == options.resume.size() && *request.step >= 0) return request;
  } catch (const std::exception&) {
  }
  throw Error(ExitCode::kUsage, cat("--resume ", options.resume, ": not a step"),
              "give --resume auto, or the number of a saved step");
}

int run_rank(const TrainOptions& options, const ResumeRequest& resume, LoadedConfig loaded,
             const LaunchEnvironment& launch) {
  // ps and top show this name, cut to 15 bytes. It contains no spaces, because some programs that
  // read /proc/PID/stat (SLURM's proctrack/linuxproc) do not expect them.
  if (launch.is_rank()) ::prctl(PR_SET_NAME, cat("ftrun-rank-", launch.rank).c_str());
  TrainRequest request;
  request.config_yaml = effective_yaml(loaded.config);
  request.config_json = effective_json(loaded.config);
  request.config = std::move(loaded.config);
  request.launch = launch;
  request.resume = resume_for_this_start(resume, launch);
  request.ranks = ranks_of_restart(launch);
  request.stop_lead_seconds = options.stop_lead_seconds;
  request.build = build_info();
  request.draws_live_line = std::getenv(launch_variables::kTerminal) != nullptr;
  return train_with_engine(request);
}

/// Returns the launch of this process. If a launcher started a single task and --nproc is given,
/// ftrun starts the ranks itself. If the launcher started several tasks, these are the ranks, and
/// --nproc is refused.
LaunchEnvironment find_launch(const TrainOptions& options) {
  const LaunchEnvironment launch = detect_launch(process_environment());
  if (!launch.is_rank() || launch.kind == LaunchKind::kSupervised || !options.source.nproc)
    return launch;
  if (launch.world_size == 1) return {};
  throw Error(ExitCode::kUsage,
              cat("--nproc ", *options.source.nproc, ": ", launch_name(launch.kind),
                  " has started ", launch.world_size, " ranks already"),
              "remove --nproc, or start ftrun without that launcher");
}

/// Returns the launch of a process that is a rank itself, for a job in which count_ranks_of_nodes()
/// found one rank per process.
LaunchEnvironment as_rank(LaunchEnvironment launch) {
  launch.kind = LaunchKind::kNodeRank;
  launch.rank = launch.node;
  launch.world_size = launch.nodes;
  return launch;
}

/// Refuses --restarts in a rank that ftrun has not started, and so cannot restart.
void refuse_restarts_of_other_launcher(const LaunchEnvironment& launch, int restarts) {
  if (restarts == 0 || !launch.is_rank() || launch.kind == LaunchKind::kSupervised) return;
  throw Error(ExitCode::kUsage, cat("--restarts ", restarts, ": ", no_restart_reason(launch.kind)),
              "remove --restarts, and let the launcher start the ranks again: torchrun "
              "--max-restarts, or a requeued job with --resume auto");
}

int train_command(const TrainOptions& options) {
  install_early_signal_handlers();
  LaunchEnvironment launch = find_launch(options);
  if (const std::string text = launch_text(launch); !text.empty()) std::cerr << text << std::endl;
  const ResumeRequest resume = resume_request(options);
  ConfigSource source = options.source;
  source.resumes = resume_for_this_start(resume, launch).is_requested;
  LoadedConfig loaded = load_source(source, launch);
  const int restarts = options.restarts.value_or(0);
  const bool needs_supervisor = launch.nodes == 1 && restarts > 0;
  if (launch.kind == LaunchKind::kNode && loaded.ranks == launch.nodes && !needs_supervisor)
    launch = as_rank(launch);
  refuse_restarts_of_other_launcher(launch, restarts);
  const bool with_notices = prints_notices(launch);
  if (with_notices) {
    for (const ResolvedLine& line : loaded.lines) std::cerr << line.text << '\n';
    const std::string elastic = elastic_notice(loaded, launch, options.restarts);
    if (!elastic.empty()) std::cerr << elastic << '\n';
    std::cerr << count_text(loaded.ranks, "rank") << ": " << loaded.rank_rule << std::endl;
  }
  // For ranks under the supervisor, the supervisor has checked this already.
  if (launch.kind != LaunchKind::kSupervised) {
    const StepPlan plan = plan_steps(loaded.config, *loaded.model, 0);
    const int64_t ranks = local_ranks(loaded, launch);
    const std::string warning = check_memory(loaded, plan, ranks, read_memory_limit());
    if (!warning.empty() && launch.local_rank == 0) log_warning(warning);
    const OutputCheck check = with_notices ? OutputCheck::kContents : OutputCheck::kSizes;
    const std::string full = check_outputs(loaded, plan, ranks, check);
    if (!full.empty() && with_notices) log_warning(full);
  }
  if (const int64_t seconds = cpu_seconds_limit(); seconds > 0 && with_notices)
    log_warning(cat("the limit on CPU time (ulimit -t) kills each process after ", seconds,
                    " seconds; set checkpoint.every and continue with --resume auto"));
  // A single rank needs no supervisor, unless it may have to be restarted.
  const bool alone = loaded.ranks == 1 && restarts == 0;
  if (launch.is_rank() || alone) return run_rank(options, resume, std::move(loaded), launch);
  return supervise(options.arguments, options.source, loaded, launch, resume, options.restarts);
}

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_config_options(command, options.source);
  command
      .add_option("--resume", options.resume,
                  "continue the run in output_dir: auto, or a saved step")
      ->type_name("auto|STEP");
  command
      .add_option("--allow", options.allowed,
                  "a field in which the resumed run may differ (config.train.seed)")
      ->type_name("FIELD")
      ->allow_extra_args(false);
  command
      .add_option("--restarts", options.restarts,
                  cat("consecutive restarts without a new checkpoint before the run is abandoned "
                      "(default ",
                      kDefaultRestarts, "; 0: no restarts)"))
      ->type_name("N")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  command
      .add_option("--stop-lead", options.stop_lead_seconds,
                  "seconds between a scheduler's warning and its kill: the run warns if stopping "
                  "may take longer (kept with the run)")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber);
}

}  // namespace

Command add_train(CLI::App& app, const std::vector<std::string>& arguments) {
  auto options = std::make_shared<TrainOptions>();
  options->arguments = arguments;
  add_train_options(app, *options);
  add_train_options(*app.add_subcommand("train", "train: the same as without a command"), *options);
  return [options] { return train_command(*options); };
}

}  // namespace ftrun

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "admission.h"
#include "base/error.h"
#include "base/log.h"
#include "build_info.h"
#include "cluster/supervisor.h"
#include "commands.h"
#include "config/effective_json.h"
#include "config/write.h"
#include "config_source.h"
#include "engine.h"
#include "output_admission.h"
#include "report/outcome.h"
#include "report/run_folder.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

struct TrainOptions {
  ConfigSource source;
  std::string resume;
  std::vector<std::string> allowed;
  std::vector<std::string> arguments;
};

ResumeRequest resume_request(const TrainOptions& options) {
  ResumeRequest request;
  request.allowed = options.allowed;
  request.resume = !options.resume.empty();
  if (!request.resume || options.resume == "auto") return request;
  try {
    size_t used = 0;
    request.step = std::stoll(options.resume, &used);
    if (used == options.resume.size() && *request.step >= 0) return request;
  } catch (const std::exception&) {
  }
  throw Error(ExitCode::kUsage, cat("--resume ", options.resume, ": not a step"),
              "give --resume auto, or the number of a saved step");
}

int run_rank(const TrainOptions& options, LoadedConfig loaded, const LaunchEnvironment& launch) {
  TrainRequest request;
  request.config_yaml = effective_yaml(loaded.config);
  request.config_json = effective_json(loaded.config);
  request.config = std::move(loaded.config);
  request.launch = launch;
  request.resume = resume_request(options);
  request.build = build_info();
  request.terminal = std::getenv("FTRUN_TERMINAL") != nullptr;
  return train_with_engine(request);
}

/// The manifest of a failed run names the rank that was the cause, which rank 0 may not know.
void record_failure(const std::string& output_dir, int64_t started, const FailureSummary& failure) {
  try {
    note_failure(RunPaths(output_dir).manifest(), {.supervisor = ::getpid(), .started = started},
                 {failure.exit_code, failure.rank, failure.reason});
  } catch (const Error& error) {
    log_debug(error.what());  // the disk may be what failed; the cause itself is told on the screen
  }
}

/// The log of a rank that has come to open one.
std::string log_of(const std::string& output_dir, int rank) {
  std::error_code unseen;
  const std::string path = RunPaths(output_dir).log(rank);
  return std::filesystem::exists(path, unseen) ? path : "";
}

int supervise(const TrainOptions& options, const LoadedConfig& loaded,
              const LaunchEnvironment& launch) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that leaves must not end the ranks
  SupervisorOptions supervisor;
  supervisor.local_ranks = static_cast<int>(loaded.ranks / std::max(1, launch.nodes));
  supervisor.nodes = launch.nodes;
  supervisor.node = launch.node;
  if (launch.nodes > 1) {
    supervisor.master_addr = launch.master_addr;
    supervisor.master_port = launch.master_port;
  }
  supervisor.arguments = options.arguments;
  supervisor.terminal = {::isatty(1) == 1, ::isatty(2) == 1};
  supervisor.log_of = [&loaded](int rank) { return log_of(loaded.config.output_dir, rank); };
  supervisor.on_failure = [&loaded, started = static_cast<int64_t>(wall_seconds())](
                              const FailureSummary& failure) {
    record_failure(loaded.config.output_dir, started, failure);
  };
  return run_supervisor(supervisor);
}

/// A launcher that starts one task lets us start the ranks; one that starts several has done so.
LaunchEnvironment find_launch(const TrainOptions& options) {
  const LaunchEnvironment launch = detect_launch(process_environment());
  if (!launch.is_rank() || launch.kind == LaunchKind::kSupervised || !options.source.nproc)
    return launch;
  if (launch.world == 1) return {};
  throw Error(ExitCode::kUsage,
              cat("--nproc ", *options.source.nproc, ": ", launch_name(launch.kind),
                  " has started ", launch.world, " ranks already"),
              "leave --nproc out, or start ftrun without that launcher");
}

/// One of several processes that are a rank each, as ranks_of_nodes() found.
LaunchEnvironment as_rank(LaunchEnvironment launch) {
  launch.kind = LaunchKind::kTorchrun;
  launch.rank = launch.node;
  launch.world = launch.nodes;
  return launch;
}

int train_command(const TrainOptions& options) {
  LaunchEnvironment launch = find_launch(options);
  resume_request(options);
  LoadedConfig loaded = load_source(options.source, launch, true);
  if (launch.kind == LaunchKind::kNode && loaded.ranks == launch.nodes) launch = as_rank(launch);
  const bool speaks =
      launch.rank == 0 && launch.node == 0 && launch.kind != LaunchKind::kSupervised;
  if (speaks) {
    for (const std::string& line : loaded.lines) std::cerr << line << '\n';
    std::cerr << loaded.ranks << (loaded.ranks == 1 ? " rank: " : " ranks: ") << loaded.rank_rule
              << std::endl;
  }
  // Of ranks that our supervisor starts, it has looked already.
  if (launch.kind != LaunchKind::kSupervised) {
    const StepPlan plan = plan_steps(loaded.config, *loaded.model, 0);
    const std::string tight =
        admit_memory(loaded, plan, local_ranks(loaded, launch), read_memory_limit());
    if (!tight.empty() && launch.local_rank == 0) log_warning(tight);
    const OutputCheck check = speaks ? OutputCheck::kContents : OutputCheck::kSizes;
    const std::string full = admit_outputs(loaded, plan, check);
    if (!full.empty() && speaks) log_warning(full);
  }
  if (launch.is_rank() || loaded.ranks == 1) return run_rank(options, std::move(loaded), launch);
  return supervise(options, loaded, launch);
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
}

}  // namespace

Command add_train(CLI::App& app, int argc, char** argv) {
  auto options = std::make_shared<TrainOptions>();
  options->arguments.assign(argv, argv + argc);
  add_train_options(app, *options);
  add_train_options(*app.add_subcommand("train", "train: the same as without a command"), *options);
  return [options] { return train_command(*options); };
}

}  // namespace ftrun

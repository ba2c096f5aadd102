#include <CLI/CLI.hpp>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "build_info.h"
#include "cluster/supervisor.h"
#include "commands.h"
#include "config/effective_json.h"
#include "config/write.h"
#include "config_source.h"
#include "engine.h"

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
  throw Error(ExitCode::kUsage, cat("--resume ", options.resume, ": not a step"), "give --resume auto, or the number of a saved step");
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
  const int local = std::max(1, launch.local_size);
  if (request.config.threads == 0)
    request.config.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / local);
  return train_with_engine(request);
}

int supervise(const TrainOptions& options, int64_t ranks, const LaunchEnvironment& launch) {
  SupervisorOptions supervisor;
  supervisor.local_ranks = static_cast<int>(ranks / std::max(1, launch.nodes));
  supervisor.nodes = launch.nodes;
  supervisor.node = launch.node;
  if (launch.nodes > 1) {
    supervisor.master_addr = launch.master_addr;
    supervisor.master_port = launch.master_port;
  }
  supervisor.arguments = options.arguments;
  supervisor.terminal = {::isatty(1) == 1, ::isatty(2) == 1};
  return run_supervisor(supervisor);
}

int train_command(const TrainOptions& options) {
  const LaunchEnvironment launch = detect_launch(process_environment());
  resume_request(options);
  LoadedConfig loaded = load_source(options.source, launch, true);
  if (launch.is_rank() && launch.kind == LaunchKind::kSupervised) return run_rank(options, std::move(loaded), launch);
  if (launch.rank == 0) {
    for (const std::string& line : loaded.lines) std::cerr << line << '\n';
    std::cerr << loaded.ranks << (loaded.ranks == 1 ? " rank: " : " ranks: ") << loaded.rank_rule << std::endl;
  }
  if (launch.is_rank() || loaded.ranks == 1) return run_rank(options, std::move(loaded), launch);
  return supervise(options, loaded.ranks, launch);
}

void add_train_options(CLI::App& command, TrainOptions& options) {
  add_config_options(command, options.source);
  command.add_option("--resume", options.resume, "continue the run in output_dir: auto, or a saved step")->type_name("auto|STEP");
  command.add_option("--allow", options.allowed, "a field in which the resumed run may differ (config.train.steps)")
      ->type_name("FIELD")->allow_extra_args(false);
}

}  // namespace

Command add_train(CLI::App& app, int argc, char** argv) {
  auto options = std::make_shared<TrainOptions>();
  options->arguments.assign(argv, argv + argc);
  add_train_options(app, *options);
  return [options] { return train_command(*options); };
}

}  // namespace ftrun

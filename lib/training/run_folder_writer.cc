#include "training/run_folder_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "base/as_error.h"
#include "base/error.h"
#include "base/file.h"
#include "base/launch_variables.h"
#include "base/log.h"
#include "base/machine_info.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/recorded_degrees.h"
#include "inputs/recorded_run.h"
#include "inputs/resume_policy.h"
#include "report/environment.h"
#include "report/launch_record.h"
#include "report/loss_table.h"
#include "report/run_report.h"
#include "report/wall_time.h"
#include "training/training_progress.h"

namespace ftrun {
namespace {

CsvMonitorOptions csv_options(const Config& config, std::optional<int64_t> resumed_samples) {
  const CsvMonitorConfig& csv = config.csv_monitor;
  return {csv.output_path.empty() ? config.output_dir : csv.output_path, csv.job_name,
          resumed_samples};
}

std::map<std::string, double> evaluation_figures(int64_t step, const EvaluationResult& evaluation) {
  std::map<std::string, double> figures{{"step", static_cast<double>(step)},
                                        {"loss", evaluation.loss},
                                        {"perplexity", evaluation.perplexity()},
                                        {"tokens", static_cast<double>(evaluation.tokens)}};
  if (evaluation.accuracy) figures["accuracy"] = *evaluation.accuracy;
  return figures;
}

}  // namespace

RunManifest make_manifest(const TrainRequest& request) {
  RunManifest manifest;
  manifest.build = request.build;
  manifest.machine = read_machine_info();
  manifest.seed = static_cast<uint64_t>(request.config.train.seed);
  manifest.topology = recorded_degrees(request.config.parallel);
  manifest.config = request.config_json;
  manifest.model.path = request.config.model.path;
  manifest.environment = recorded_environment();
  if (!request.torchrun_launch.empty())
    manifest.environment[launch_variables::kAgent] = request.torchrun_launch;
  manifest.start_time = utc_now();
  return manifest;
}

RunFolderWriter::RunFolderWriter(const TrainRequest& request)
    : request_(request),
      folder_(request.config.output_dir, request.resume.step           ? RunStart::kResumeStep
                                         : request.resume.is_requested ? RunStart::kResume
                                                                       : RunStart::kFresh) {
  if (folder_.has_earlier_run()) earlier_manifest_ = read_manifest(paths().manifest());
}

void RunFolderWriter::check_and_report_changes(const std::string& path, const RunManifest& recorded,
                                               const RunManifest& current) {
  for (const std::string& change : check_resume(path, recorded, current, request_.resume.allowed))
    if (reported_changes_.insert(change).second)
      log_notice(cat("the resumed run has another ", change));
}

void RunFolderWriter::check_resumed_run(const RunManifest& current) {
  if (earlier_manifest_)
    return check_and_report_changes(paths().manifest(), *earlier_manifest_, current);
  log_warning(cat(paths().manifest(),
                  ": is missing; the run is compared with what its checkpoint records"));
}

void RunFolderWriter::check_resumed_checkpoint(const std::string& folder,
                                               const CheckpointMeta& meta,
                                               const RunManifest& current) {
  if (is_imported(meta)) log_notice(import_notice(folder, meta));
  check_and_report_changes(checkpoint_manifest_path(folder), recorded_run(meta, current), current);
  start_state_ = folder;
}

void RunFolderWriter::refuse_if_checkpoints_are_gone() const {
  if (!earlier_manifest_) return;
  const auto saved_count = earlier_manifest_->counters.find("checkpoints_saved");
  const bool has_saved =
      saved_count != earlier_manifest_->counters.end() && saved_count->second > 0;
  if (!has_saved && !posix_files().exists(paths().checkpoints() + "/latest")) return;
  throw Error(ExitCode::kBadInput,
              cat(paths().manifest(), ": the run saved checkpoints, but ", paths().checkpoints(),
                  " contains none"),
              "restore a checkpoint folder there, or start again in another output_dir");
}

void RunFolderWriter::record_new_start() {
  if (!request_.resume.is_requested) return;
  if (earlier_manifest_) {
    start_state_ += ": --resume found a run that had saved no checkpoint";
    return print("no checkpoint was saved yet: training starts from the beginning");
  }
  start_state_ += ": --resume found no run in output_dir";
  warn(cat("--resume auto: output_dir ", paths().root(),
           " held no run: training starts from the beginning, with the model's weights",
           did_you_mean(folder_.similar_run())));
}

void RunFolderWriter::start(RunManifest manifest, int64_t first_step, int64_t total_steps) {
  first_step_ = first_step;
  record_restart(manifest, first_step);
  record_first_start(manifest, wall_seconds() - read_process_times().age_seconds);
  manifest.start_state = start_state_;
  manifest_.emplace(paths().manifest(), std::move(manifest));
  write_file_atomic(posix_files(), paths().config(), request_.config_yaml);
  const Config& config = request_.config;
  // A run that was killed before its first checkpoint is resumed from step 0.
  const bool resumes = earlier_manifest_ || first_step > 0;
  const int64_t steps_done = std::max<int64_t>(0, first_step - 1);
  metrics_.emplace(paths().metrics(), first_step);
  if (config.train.generate.prompt_tokens > 0 || posix_files().exists(paths().samples()))
    samples_.emplace(paths().samples(), first_step);
  if (config.train.log.tensorboard) {
    TensorBoardOptions options;
    if (resumes) options.first_step = first_step;
    tensorboard_.emplace(paths().tensorboard(), options);
  }
  if (config.csv_monitor.enabled)
    csv_.emplace(csv_options(
        config, resumes ? std::optional(sequences_in_steps(steps_done, config)) : std::nullopt));
  if (const WandbConfig& wandb = config.wandb; wandb.enabled)
    follower_.emplace(RunFollowerOptions{paths().root(), wandb.project, wandb.group, wandb.team});
  open_progress(total_steps);
  check_follower();
}

/// Starts or checks the process that sends the run to an experiment tracker, if there is one.
void RunFolderWriter::check_follower() {
  if (!follower_) return;
  if (const std::string warning = follower_->start(); !warning.empty()) warn(warning);
}

void RunFolderWriter::end_follower() {
  if (!follower_) return;
  check_follower();
  if (const std::string problem = follower_->problem(); !problem.empty()) log_warning(problem);
  follower_.reset();  // so the problem is reported once, even if the run fails after this
}

/// Copies the history of the folder's earlier run from its manifest to the new one.
void RunFolderWriter::record_restart(RunManifest& manifest, int64_t first_step) const {
  if (!earlier_manifest_) return;
  manifest.restarts = earlier_manifest_->restarts;
  manifest.counters = earlier_manifest_->counters;
  RestartRecord restart;
  restart.time = manifest.start_time;
  restart.reason = earlier_manifest_->exit_code
                       ? earlier_manifest_->exit_reason
                       : "the previous run ended without recording a reason";
  restart.rank = earlier_manifest_->exit_rank;
  if (posix_files().exists(paths().metrics()))
    for (const StepMetrics& metrics : read_metrics(paths().metrics()))
      restart.from_step = std::max(restart.from_step, metrics.step);
  restart.to_step = std::max<int64_t>(0, first_step - 1);
  restart.ranks = request_.ranks;
  restart.ranks.count = request_.launch.world_size;
  manifest.restarts.push_back(restart);
}

void RunFolderWriter::open_progress(int64_t total_steps) {
  constexpr int kStandardOutput = 1;
  if (request_.draws_live_line)
    terminal_ = OwnedFd(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  ProgressOptions options = progress_options_for(terminal_ ? terminal_.get() : kStandardOutput,
                                                 request_.config.train.log.every);
  // mpirun gives its ranks a pseudo-terminal, even if its own output goes to a file.
  if (request_.launch.kind == LaunchKind::kOpenMpi) options.live = false;
  is_live_ = options.live;
  progress_.emplace(std::cout, std::move(options), total_steps);
}

void RunFolderWriter::record_step(const StepMetrics& metrics) {
  folder_.check_still_owned();
  metrics_->write(metrics);
  check_follower();
  if (tensorboard_) tensorboard_->write(metrics.step, tensorboard_scalars(metrics));
  if (csv_) csv_->write(metrics);
  progress_->show(metrics);
  if (metrics.evaluations.empty()) return;
  update_manifest([&](RunManifest& manifest) {
    for (const EvaluationResult& evaluation : metrics.evaluations)
      manifest.evaluations[evaluation.set] = evaluation_figures(metrics.step, evaluation);
  });
}

void RunFolderWriter::record_trace(const TracedStep& step) {
  folder_.check_still_owned();
  const bool is_first = !trace_;
  if (is_first) trace_.emplace(paths().trace(), first_step_);
  trace_->add(step);
  if (is_first) print(cat("traced steps: ", paths().trace(), ", for ui.perfetto.dev"));
}

void RunFolderWriter::record_texts(int64_t step, const std::vector<TextSample>& samples) {
  for (const TextSample& sample : samples)
    if (samples_) samples_->write_line(text_sample_line(step, sample));
}

void RunFolderWriter::print(const std::string& line) {
  log_debug(line);
  if (progress_)
    progress_->print(terminal_text(line));
  else
    std::cout << terminal_text(line) << std::endl;
}

void RunFolderWriter::warn(const std::string& line) {
  if (!is_live_) return log_warning(line);
  progress_->print("warning: " +
                   terminal_text(line));  // written to stderr, it would mix with the live line
  log_warning_to_file(line);
}

std::string RunFolderWriter::finish(int exit_code, const std::string& reason) {
  progress_->finish();
  end_follower();
  const std::vector<StepMetrics> metrics = read_metrics(paths().metrics());
  const EffectiveTime time = write_outcome(exit_code, reason, metrics);
  write_report();
  if (metrics.empty()) return "";
  std::string report = loss_table(metrics);
  for (const std::string& line : restart_texts(manifest_->manifest(), request_.launch.restarts))
    report += line + "\n";
  return report + effective_time_text(time) + "\n";
}

void RunFolderWriter::fail(int exit_code, const std::string& reason) noexcept {
  try {
    if (progress_) progress_->finish();
    end_follower();
    if (!manifest_ || folder_.belongs_to_another_run()) return;
    // With several ranks, the supervisor records which rank was the cause.
    if (request_.launch.world_size == 1)
      manifest_->update([](RunManifest& manifest) { manifest.exit_rank = 0; });
    const bool trained = posix_files().exists(paths().metrics());
    write_outcome(exit_code, reason,
                  trained ? read_metrics(paths().metrics()) : std::vector<StepMetrics>{});
    if (trained) write_report();
  } catch (const std::exception&) {
    // A full disk may be what ends the run. The run's error is reported elsewhere.
  }
}

/// Writes the report. A failure is only logged, because it must not change the outcome of the run.
void RunFolderWriter::write_report() noexcept {
  try {
    write_run_report(paths().report(), {paths().root()});
  } catch (const std::exception& exception) {
    log_warning(cat("report.html was not written: ", as_error(exception).message()));
  }
}

EffectiveTime RunFolderWriter::write_outcome(int exit_code, const std::string& reason,
                                             const std::vector<StepMetrics>& metrics) {
  EffectiveTime time;
  manifest_->update([&](RunManifest& manifest) {
    manifest.end_time = utc_now();
    manifest.exit_code = exit_code;
    manifest.exit_reason = reason;
    time = record_effective_time(manifest, metrics, wall_seconds());
  });
  return time;
}

}  // namespace ftrun

#include "exec/recorder.h"

#include <iostream>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "report/environment.h"
#include "report/loss_plot.h"
#include "report/resume_check.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

constexpr int kStandardOutput = 1;

/// Holds the folder first, so that the manifest in it is nobody else's while it is compared.
RunFolder take_folder(const TrainRequest& request, const RunManifest& manifest) {
  RunFolder folder(request.config.output_dir, request.resume.resume ? RunStart::kResume : RunStart::kFresh);
  if (folder.has_earlier_run()) {
    const std::string path = folder.paths().manifest();
    refuse_other_run(path, compare_manifests(read_manifest(path), manifest), request.resume.allowed);
  }
  return folder;
}

/// What the earlier run of the folder left in its manifest goes on in the new one.
RunManifest continued(const RunFolder& folder, RunManifest manifest) {
  if (!folder.has_earlier_run()) return manifest;
  RunManifest before = read_manifest(folder.paths().manifest());
  manifest.restarts = std::move(before.restarts);
  manifest.restarts.push_back({manifest.started, before.exit_reason.empty() ? "the run before did not end in order"
                                                                            : before.exit_reason, -1, 0, 0});
  return manifest;
}

}  // namespace

RunManifest make_manifest(const TrainRequest& request) {
  RunManifest manifest;
  manifest.build = request.build;
  manifest.machine = read_machine();
  manifest.seed = static_cast<uint64_t>(request.config.train.seed);
  manifest.topology = {{"data", request.config.parallel.data}};
  manifest.config = request.config_json;
  manifest.model.path = request.config.model.path;
  manifest.environment = shown_environment();
  manifest.started = utc_now();
  return manifest;
}

Recorder::Recorder(const TrainRequest& request, RunManifest manifest)
    : request_(request),
      folder_(take_folder(request, manifest)),
      manifest_(folder_.paths().manifest(), continued(folder_, std::move(manifest))) {
  write_file_atomic(posix_files(), folder_.paths().config(), request.config_yaml);
}

void Recorder::start(int64_t first_step, int64_t total_steps) {
  const Config& config = request_.config;
  metrics_.emplace(paths().metrics(), first_step);
  if (config.train.log.tensorboard) {
    TensorBoardOptions options;
    if (first_step > 1) options.first_step = first_step;
    tensorboard_.emplace(paths().tensorboard(), options);
  }
  if (config.csv_monitor.enabled)
    csv_.emplace(CsvMonitorOptions{config.csv_monitor.output_path, config.csv_monitor.job_name});
  ProgressOptions options = progress_options_for(kStandardOutput, config.train.log.every);
  options.live = options.live || request_.terminal;
  progress_.emplace(std::cout, std::move(options), total_steps);
}

void Recorder::record(const StepMetrics& metrics) {
  metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics.step, step_scalars(metrics));
  if (csv_ && metrics.trained) csv_->write(metrics);
  progress_->show(metrics);
}

void Recorder::say(const std::string& line) {
  if (progress_)
    progress_->print(line);
  else
    std::cout << line << std::endl;
}

std::string Recorder::finish(int exit_code, const std::string& reason) {
  progress_->finish();
  manifest_.update([&](RunManifest& manifest) {
    manifest.ended = utc_now();
    manifest.exit_code = exit_code;
    manifest.exit_reason = reason;
  });
  const std::vector<StepMetrics> metrics = read_metrics(paths().metrics());
  if (metrics.empty()) return "";
  write_file_atomic(posix_files(), paths().loss_plot(), loss_plot_svg(metrics));
  return loss_table(metrics);
}

}  // namespace ftrun

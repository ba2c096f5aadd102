#include "training/trainer.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "axes/mesh.h"
#include "axes/tensor/node_traffic.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/file.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "cluster/core_share.h"
#include "cluster/failure_report.h"
#include "cluster/progress_board.h"
#include "config/resolve.h"
#include "inputs/export_options.h"
#include "training/start_request.h"
#include "training/stop_signal.h"
#include "training/training_error.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// Makes glibc map each large allocation separately, so that its memory returns to the system when
/// it is freed. Otherwise glibc would raise its limit for that after each large free, and would
/// keep the freed memory in the heaps of its threads.
void limit_kept_memory() {
  constexpr int kSmall = 128 << 10;
  ::mallopt(M_MMAP_THRESHOLD, kSmall);
  // Free memory at the end of a heap is returned from this size on.
  ::mallopt(M_TRIM_THRESHOLD, kSmall);
}

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : session_(request),
      request_(complete_request(request, session_.torchrun_launch())),
      config_(request_.config),
      stop_(stop_signal, [this](int signal) { return session_.agree_on_stop(signal); }),
      stop_lead_(request_.stop_lead_seconds, saves_in_background(config_)),
      journal_(request_, session_),
      clock_([start = Clock::now()] { return seconds_since(start); }),
      data_identity_(request_, session_, journal_),
      progress_(config_) {}

Trainer::~Trainer() {
  [[maybe_unused]] static RunData* kept = nullptr;
  kept = new RunData(std::move(data_));
}

int Trainer::run() {
  try {
    return train();
  } catch (const std::exception& exception) {
    const Error error = training_error(exception);
    FailureReport report = make_failure_report(session_.rank(), exception, error);
    if (error.code() == ExitCode::kPeerLost) report.culprit = session_.board().blamed_rank();
    fail(error, report);
    throw error;
  }
}

int Trainer::train() {
  prepare_process();
  journal_.open_folder();
  open_data();
  open_model();
  PlanSummary summary = check_rank_programs(config_, *setup_, session_);
  load_or_resume();
  open_outputs();
  warn_of_placement();
  running_loop_.emplace(*this, std::move(summary));
  catch_stop_signals();
  running_loop_->loop.run();
  finish();
  setup_->drop_captures();
  session_.close();
  ignore_stop_signals();
  return stop_.exit_code();
}

void Trainer::fail(const Error& error, const FailureReport& report) {
  // The failure is reported before the shutdown, which may take longer than the supervisor waits.
  report_failure(report);
  journal_.fail(static_cast<int>(error.code()), error.message());
  log_debug(cat("error: ", error.what()));
  if (checkpointer_and_evaluator_)
    checkpointer_and_evaluator_->checkpointer.end_background_save(error);
  if (setup_) setup_->drop_captures();
  session_.leave();
  // Threads of a communicator may still write to the buffers of an aborted collective, so the
  // setup's memory is never freed.
  [[maybe_unused]] static TrainingSetup* kept = nullptr;
  kept = setup_.release();
}

// The functions below open everything that a run needs before its first step.

void Trainer::prepare_process() {
  const CoreLimit cores = read_core_limit();
  threads_.usable_cores = session_.share_cores(cores);
  threads_.count = config_.threads > 0 ? static_cast<int>(config_.threads) : threads_.usable_cores;
  threads_.limit_reason = quota_text(cores);
  session_.run_on_all_ranks("starting threads",
                            [&] { check_thread_limit(threads_.count, "computing"); });
  set_kernel_threads(threads_.count);
  limit_kept_memory();
  if (session_.gpu() != nullptr) return;
  session_.run_on_all_ranks("choosing the library of matrix multiplication", [&] {
    matmul_libraries_ = choose_matmul_library(pinned_matmul_library(config_.kernels),
                                              attention_on_matrix_units(config_.kernels));
  });
}

void Trainer::open_data() {
  session_.run_on_all_ranks("opening the data", [&] { data_ = open_run_data(config_); });
  total_steps_ = steps_of_run(config_, *data_.train);
  if (session_.world_size() == 1) return;
  std::vector<NodeFact> inputs;
  session_.run_on_all_ranks("comparing model and data of the nodes",
                            [&] { inputs = input_facts(config_, data_); });
  session_.check_nodes_match("inputs", inputs);
}

void Trainer::open_model() {
  std::optional<PlannedModel> model;
  session_.run_on_all_ranks("opening the model", [&] {
    model.emplace(config_, session_.rank());
    refuse_unknown_tokens(data_, model->plan.train.model.vocab_rows);
  });
  session_.open_communicators(config_, model->plan.options.state);
  session_.run_on_all_ranks("allocating memory", [&] {
    setup_ = std::make_unique<TrainingSetup>(config_, std::move(*model), session_.communicators(),
                                             unique_swap_name(request_), session_.gpu());
  });
  checkpointer_and_evaluator_.emplace(*this);
  journal_.set_timed_executor(setup_->train_executor());
}

Trainer::CheckpointerAndEvaluator::CheckpointerAndEvaluator(Trainer& run)
    : checkpointed(make_checkpointed_state(run.config_, *run.setup_)),
      checkpointer(run.request_, run.session_,
                   {.model = *checkpointed,
                    .journal = run.journal_,
                    .folder_writer = run.journal_.folder_writer(),
                    .files = posix_files(),
                    .clock = run.clock_}),
      evaluator(run.config_, run.session_, *run.setup_, run.data_, run.journal_, run.stop_) {}

RunManifest Trainer::describe() {
  return describe_run(description_inputs());
}

void Trainer::load_or_resume() {
  const std::optional<ResumedRun> resumed =
      checkpointer_and_evaluator_->checkpointer.load([this] { return describe(); });
  if (!resumed) return;
  const CheckpointMeta& meta = resumed->meta;
  progress_.restore(meta);
  checkpointer_and_evaluator_->checkpointer.restore_best(progress_);
  data_identity_.set_checkpoint(resumed->folder, meta.data_fingerprint);
  if (!has_ended()) return;
  journal_.print(cat(
      "nothing is left to train: step ", progress_.step, " of ", total_steps_,
      progress_.step < total_steps_ ? cat("; stopped early: ", progress_.early_end_reason()) : ""));
}

void Trainer::open_outputs() {
  journal_.open([this] { return describe(); }, progress_.step, total_steps_);
  if (const RunFolderWriter* folder_writer = journal_.folder_writer();
      folder_writer != nullptr && folder_writer->earlier_manifest())
    stop_lead_.read_counters(folder_writer->earlier_manifest()->counters);
  stop_lead_.mark_costs_written();
  journal_.update_manifest(
      [this](RunManifest& manifest) { stop_lead_.write_counters(manifest.counters); });
  session_.run_on_all_ranks("printing the opening notes", [this] { print_opening_notes(); });
  session_.run_on_all_ranks("beginning to read the data for its fingerprint",
                            [this] { data_identity_.start(data_); });
}

/// Prints on rank 0 what the run found, and warns of keys that ask for more steps than the run has.
void Trainer::print_opening_notes() {
  if (!session_.is_first()) return;
  for (const std::string& note : list_start_notes(description_inputs())) journal_.print(note);
  // If the config has the number of steps, a notice of the config reports this already.
  const std::string rise =
      config_.train.steps == 0 ? unfinished_warmup_text(config_.scheduler, total_steps_) : "";
  if (!rise.empty()) journal_.warn(rise);
  for (const int64_t step : config_.train.trace.steps)
    if (step > total_steps_)
      journal_.warn(cat("train.trace.steps: step ", step, " is beyond the run's ", total_steps_,
                        " steps, and is not traced"));
}

/// Warns if tensor-parallel ranks are on different nodes: they wait for each other in every layer,
/// and slow links between nodes then take most of a step.
void Trainer::warn_of_placement() {
  if (session_.world_size() == 1) return;
  const RankMesh mesh = rank_mesh(config_);
  const std::vector<std::string>& nodes = session_.nodes();
  TensorNodeTraffic traffic = tensor_node_traffic(mesh, nodes, [](int) { return int64_t{0}; });
  if (traffic.crossing_groups == 0) return;
  std::array<double, 1> bytes{};
  if (sends_to_other_node(mesh, session_.rank(), nodes))
    bytes[0] = static_cast<double>(tensor_group_bytes(setup_->train_plan().program));
  session_.sum(bytes, "bytes between nodes");
  traffic.bytes = std::llround(bytes[0]);
  journal_.warn(tensor_node_traffic_warning(traffic, nodes));
}

Trainer::RunningLoop::RunningLoop(Trainer& run, PlanSummary summary)
    : stepper(run.config_, run.session_, *run.setup_, run.journal_, std::move(summary)),
      loader(*run.data_.train, loader_options(run.config_, run.setup_->plan(), run.progress_.step,
                                              std::max(run.progress_.step, run.total_steps_))),
      loop(run.config_,
           {.schedule = {run.config_.scheduler, run.total_steps_},
            .total_steps = run.total_steps_,
            .is_first = run.session_.is_first()},
           run.progress_,
           {.next_step_batch = [this] { return loader.next(); },
            .stepper = stepper,
            .saver = run.checkpointer_and_evaluator_->checkpointer,
            .evaluator = run.checkpointer_and_evaluator_->evaluator,
            .journal = run.journal_,
            .data_identity = run.data_identity_,
            .stop = run.stop_,
            .stop_lead = run.stop_lead_,
            .clock = run.clock_}) {}

// The functions below end the run.

void Trainer::finish() {
  running_loop_->loader.shutdown();
  running_loop_->stepper.resource_use().sum_over_ranks(session_);
  running_loop_->stepper.average_times();
  session_.run_on_all_ranks("recording what the run used", [this] {
    journal_.update_manifest([this](RunManifest& manifest) {
      running_loop_->stepper.resource_use().write_totals(manifest);
      load_of_steps_ = running_loop_->stepper.cpu_load_watch().shares();
      manifest.time = running_loop_->stepper.times().manifest_values(load_of_steps_);
    });
  });
  session_.extend_timeouts_for_rank_0();
  running_loop_->loop.save_last();
  session_.run_on_all_ranks("recording the checkpoints", [this] {
    journal_.update_manifest([this](RunManifest& manifest) {
      checkpointer_and_evaluator_->checkpointer.add_counters(manifest);
      stop_lead_.add_save_time(running_loop_->loop.longest_save_and_check_seconds());
      stop_lead_.write_counters(manifest.counters);
    });
  });
  if (!stop_.reached() && config_.model_export.enabled) export_model();
  session_.show_phase("the end of the run");
  checkpointer_and_evaluator_->evaluator.write_texts(progress_.step);
  session_.run_on_all_ranks("finishing the run", [&] { report_end(); });
  if (!withheld_reason_.empty())
    throw Error(ExitCode::kNumerical, withheld_reason_,
                cat("lower the learning rate, and start again from an earlier checkpoint or from "
                    "the beginning; to export the weights anyway: ",
                    convert_command()));
}

/// Decides whether the weights are exported. They are withheld if the best checkpoint is wanted and
/// there is none, or if the last evaluation is not finite.
Trainer::ExportDecision Trainer::decide_export() const {
  const bool wants_best = config_.model_export.which == ExportedStep::kBest;
  const std::string problem = progress_.evaluations.export_problem(progress_.step);
  const auto& best = progress_.evaluations.best();
  if (wants_best && !best)
    return {.withheld_reason =
                cat(problem.empty() ? "" : problem + ", and ",
                    "no evaluation after a step gave a finite ", progress_.evaluations.metric(),
                    ": there is no best checkpoint, and nothing was exported")};
  if (problem.empty()) return {};
  if (!wants_best)
    return {.withheld_reason = problem + ": the weights are not exported as a good model"};
  return {.warning = cat(problem, ": the export has the weights of step ", best->step,
                         ", the best by ", progress_.evaluations.metric())};
}

void Trainer::export_model() {
  const ExportDecision decision = decide_export();
  withheld_reason_ = decision.withheld_reason;
  if (!decision.warning.empty()) journal_.warn(decision.warning);
  if (!withheld_reason_.empty()) return;
  if (config_.model_export.which == ExportedStep::kBest) {
    // Text samples use the weights of the last step, as at every evaluation, so they are written
    // before the best weights are loaded.
    checkpointer_and_evaluator_->evaluator.write_texts(progress_.step);
    checkpointer_and_evaluator_->checkpointer.load_best(progress_);
  }
  checkpointer_and_evaluator_->checkpointer.export_model(stop_);
}

void Trainer::report_end() {
  if (!session_.is_first()) return;
  data_identity_.record_known_fingerprints();
  checkpointer_and_evaluator_->evaluator.print_sample(progress_.step);
  for (const std::string& text :
       running_loop_->stepper.resource_use().summary_lines(session_.world_size()))
    journal_.print(text);
  if (const std::string text = running_loop_->stepper.times().text(load_of_steps_); !text.empty())
    journal_.print(text);
  const std::string reason = end_reason();
  if (!stop_.reached() && progress_.step < total_steps_) journal_.print(reason);
  journal_.finish(
      withheld_reason_.empty() ? stop_.exit_code() : static_cast<int>(ExitCode::kNumerical),
      withheld_reason_.empty() ? reason : withheld_reason_);
  if (stop_.reached()) log_notice(cat(reason, "; ", continue_text()));
}

std::string Trainer::end_reason() const {
  if (stop_.reached())
    return cat("stopped by ", stop_.signal_name(), " after step ", progress_.step);
  if (progress_.step >= total_steps_) return "done";
  return cat("done, stopped early after step ", progress_.step, " of ", total_steps_, ": ",
             progress_.early_end_reason());
}

std::string Trainer::continue_text() const {
  if (!has_ended() || config_.model_export.which == ExportedStep::kBest ||
      !config_.model_export.enabled)
    return "continue with --resume auto";
  return cat("only the export is missing; --resume auto writes it, or: ", convert_command());
}

std::string Trainer::convert_command() const {
  return cat("ftrun convert ", config_.output_dir, " --out ", export_folder(config_));
}

int train(const TrainRequest& request) {
  install_crash_handler();
  return Trainer(request).run();
}

}  // namespace ftrun

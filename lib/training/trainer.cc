#include "training/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limit_remedies.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/text.h"
#include "cluster/failure_report.h"
#include "cluster/peers.h"
#include "cluster/processor_share.h"
#include "cluster/progress.h"
#include "config/resolve.h"
#include "plan/export_options.h"
#include "plan/resume_policy.h"
#include "program/node_crossing.h"
#include "report/outcome.h"
#include "training/check_ranks.h"
#include "training/nonfinite_search.h"
#include "training/prepare_step.h"
#include "training/stop_signal.h"
#include "training/training_error.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

/// Names the swap files of one run.
std::string swap_name(const TrainRequest& request) {
  const std::string key =
      cat(request.config.output_dir, "\n", request.launch.master_port, "\n", ::getppid());
  return hex64(xxh3(key.data(), key.size()));
}

/// Identifies the launch by torchrun's own process and restart count if its agent serves no store:
/// the process outlives its ranks.
std::optional<AgentLaunch> launch_of_parent(const LaunchEnvironment& launch) {
  if (launch.kind != LaunchKind::kTorchrun) return std::nullopt;
  const std::string process = identity_text(identity_of(::getppid()));
  return AgentLaunch{hex64(xxh3(process.data(), process.size())), launch.agent_restarts};
}

/// Completes the request with what ranks know once they have met: those that torchrun started again
/// go on with the run that an earlier start of it began.
TrainRequest request_of_start(TrainRequest request, std::optional<AgentLaunch> agent) {
  if (!agent) agent = launch_of_parent(request.launch);
  if (!agent) return request;
  request.agent = agent->name;
  request.launch.restart = agent->earlier_starts;
  if (request.launch.rank > 0 || agent->earlier_starts == 0) return request;  // rank 0 decides
  try {
    if (began_by_agent(RunPaths(request.config.output_dir).manifest(), agent->name)) request.resume.resume_newest();
  } catch (const Error& error) {
    log_debug(error.what());  // the run itself refuses the folder, and says why
  }
  return request;
}

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : session_(request),
      request_(request_of_start(request, session_.agent_launch())),
      config_(request_.config),
      stop_(session_),
      stop_lead_(request_.stop_lead, saves_in_background(config_)),
      journal_(request_, session_),
      identity_(request_, session_, journal_),
      lr_schedule_(config_.scheduler),
      progress_(config_),
      evaluation_clock_(config_, session_) {}

int Trainer::run() {
  try {
    return train();
  } catch (const std::exception& exception) {
    const Error error = training_error(exception);
    FailureReport report = failure_report(session_.rank(), exception, error);
    if (error.code() == ExitCode::kPeerLost) report.culprit = session_.board().blamed();
    fail(error, report);
    throw error;
  }
}

int Trainer::train() {
  prepare_process();
  journal_.take_folder();
  open_data();
  open_model();
  step_times_.emplace(check_ranks(config_, *setup_, session_));
  load_or_resume();
  open_outputs();
  warn_of_placement();
  open_replica_check();
  open_slow_ranks();
  start_loader();
  train_until_stopped();
  finish();
  setup_->drop_recordings();
  session_.close();
  ignore_stop_signals();
  return stop_.exit_code();
}

void Trainer::fail(const Error& error, const FailureReport& report) {
  // Before anything is torn down, which may outlast the supervisor's patience with this rank.
  report_failure(report);
  journal_.fail(static_cast<int>(error.code()), error.message());
  log_debug(cat("error: ", error.what()));
  if (checkpointer_) checkpointer_->leave(error);
  if (setup_) setup_->drop_recordings();
  session_.leave();
  // A transport's threads may still write to what a collective that was given up would have
  // filled: its memory stays until the process ends.
  [[maybe_unused]] static TrainingSetup* kept = nullptr;
  kept = setup_.release();
}

// These functions open what is opened before the first step.

void Trainer::prepare_process() {
  const ProcessorLimit processors = read_processor_limit();
  threads_.share = session_.share_processors(processors);
  threads_.used = config_.threads > 0 ? static_cast<int>(config_.threads) : threads_.share;
  threads_.limited_by = quota_text(processors);
  session_.together("starting threads", [&] { require_threads(threads_.used, "computing"); });
  set_kernel_threads(threads_.used);
  if (session_.gpu() != nullptr) return;
  session_.together("choosing the library of matrix products", [&] {
    products_ = use_products(pinned_products(config_.kernels), config_.kernels.attention == AttentionChoice::kAmx);
  });
}

void Trainer::open_data() {
  session_.together("opening the data", [&] { data_ = open_run_data(config_); });
  total_steps_ = steps_of_run(config_, *data_.train);
  if (lr_schedule_.total_num_steps == 0) lr_schedule_.total_num_steps = total_steps_;
  if (session_.world() == 1) return;
  std::vector<NodeFact> inputs;
  session_.together("comparing model and data of the nodes",
                    [&] { inputs = input_facts(config_, data_); });
  session_.require_same("inputs", inputs);
}

void Trainer::open_model() {
  std::optional<PlannedModel> model;
  session_.together("opening the model", [&] {
    model.emplace(config_, session_.rank());
    refuse_unknown_tokens(data_, model->plan.train.model.vocab_rows);
  });
  session_.open_groups(config_, model->plan.options.state);
  session_.together("allocating memory", [&] {
    setup_ = std::make_unique<TrainingSetup>(config_, std::move(*model), session_.groups(),
                                             swap_name(request_), session_.gpu());
  });
  checkpointer_.emplace(request_, session_, *setup_, journal_);
  use_.emplace(*setup_);
}

RunManifest Trainer::describe() {
  return describe_run(parts());
}

void Trainer::load_or_resume() {
  const std::optional<ResumedRun> resumed = checkpointer_->load([this] { return describe(); });
  if (!resumed) return;
  const CheckpointMeta& meta = resumed->meta;
  progress_.step = meta.step;
  progress_.tokens = meta.tokens;
  progress_.skipped.restore(meta.skipped_steps, meta.loss_scaler);
  if (const auto record = meta.extra.find(kEvaluationRecord); record != meta.extra.end())
    progress_.evaluations.restore(record->second);
  review_evaluations();
  checkpointer_->take_up_best(progress_);
  identity_.resumed_from(resumed->folder, meta.data_fingerprint);
  if (!has_ended()) return;
  journal_.say(cat("nothing is left to train: step ", progress_.step, " of ", total_steps_,
                   progress_.step < total_steps_ ? cat("; stopped early: ", progress_.evaluations.stop_reason()) : ""));
}

void Trainer::open_outputs() {
  journal_.open([this] { return describe(); }, progress_.step, total_steps_);
  if (const Recorder* recorder = journal_.recorder(); recorder != nullptr && recorder->before())
    stop_lead_.read_counters(recorder->before()->counters);
  stop_lead_.note_written();
  journal_.update([this](RunManifest& manifest) { stop_lead_.write_counters(manifest.counters); });
  session_.together("beginning to read the data for its fingerprint", [this] {
    if (!session_.is_first()) return;
    for (const std::string& note : opening_notes(parts())) journal_.say(note);
    // A notice reports it for a config that says how many steps.
    const std::string rise = config_.train.steps == 0 ? unfinished_rise(lr_schedule_, total_steps_) : "";
    if (!rise.empty()) journal_.warn(rise);
    identity_.start(data_);
  });
}

/// Tensor ranks wait for each other inside each layer: on different nodes that takes most of a
/// step.
void Trainer::warn_of_placement() {
  if (session_.world() == 1) return;
  const RankMesh mesh = rank_mesh(config_);
  const std::vector<std::string>& nodes = session_.nodes();
  TensorCrossing crossing = tensor_crossing(mesh, nodes, [](int) { return int64_t{0}; });
  if (crossing.groups == 0) return;
  std::array<double, 1> bytes{};
  if (passes_to_other_node(mesh, session_.rank(), nodes))
    bytes[0] = static_cast<double>(tensor_bytes(setup_->train().program));
  session_.sum(bytes, "bytes between nodes");
  crossing.bytes = std::llround(bytes[0]);
  journal_.warn(crossing_text(crossing, nodes));
}

void Trainer::open_replica_check() {
  if (config_.train.check_replicas == 0 || session_.world() == 1) return;
  replicas_.emplace(setup_->train(), setup_->partition(), setup_->memory(), optimizer_state_kinds(config_.optimizer),
                    [this](const std::string& text) { return session_.exchange("replicas", text); },
                    [this](std::span<double> numbers) { session_.sum(numbers, "hashes of replicas"); });
  if (!replicas_->compares())
    journal_.say(
        "no state is replicated across ranks, so train.check_replicas cannot detect silent "
        "corruption");
}

/// Ranks of one stage of the pipeline have the same work.
void Trainer::open_slow_ranks() {
  if (session_.world() == 1) return;
  const RankMesh mesh = rank_mesh(config_);
  std::vector<int> stages;
  for (int rank = 0; rank < session_.world(); ++rank) stages.push_back(mesh.coordinate(rank).pp);
  slow_ranks_.emplace(session_.rank(), std::move(stages),
                      [this](std::span<double> numbers) { session_.sum(numbers, "times of ranks"); });
}

void Trainer::start_loader() {
  const int64_t end = std::max(progress_.step, total_steps_);
  loader_ = std::make_unique<Loader>(*data_.train,
                                     loader_options(config_, setup_->plan(), progress_.step, end));
}

// The loop.

void Trainer::train_until_stopped() {
  catch_stop_signals();
  review_stop_lead();  // by what an earlier start measured
  evaluate_before_training();
  while (!has_ended() && !stop_.reached()) {
    StepMetrics metrics = train_step();
    // Between a signal and the kill that may follow it there is time to save, not to validate.
    const bool evaluated = !stop_.reached() && evaluation_is_due() && evaluate(metrics);
    session_.show_phase(cat("recording step ", progress_.step));  // rank 0's disk may be slow
    journal_.record(metrics);
    // After the last step there is something to save first.
    if (evaluated && !has_ended()) write_samples();
    progress_.skipped.refuse_too_many(progress_.step);
    identity_.record();
    const bool saves = checkpointer_->will_save(progress_);
    if (saves) identity_.await_before_saving(stop_);
    if (progress_.step % std::max<int64_t>(1, config_.train.check_replicas) == 0 || saves || stop_.reached()) check_replicas();
    if (stop_.reached())
      checkpointer_->save(progress_, identity_.train());
    else if (!has_ended() && checkpointer_->save_if_due(progress_, identity_.train()))
      // Saving took its time: whoever asked to stop meanwhile need not wait for a step and its
      // save.
      stop_.vote();
    review_stop_lead();
  }
  if (!stop_.reached()) progress_.skipped.refuse_none_trained(progress_.step);
}

/// Compares replicas; also before each checkpoint, so that none holds what a memory has changed.
void Trainer::check_replicas() {
  if (!replicas_) return;
  session_.show_phase(cat("comparing replicas after step ", progress_.step));
  const auto start = Clock::now();
  replicas_->check(progress_.step);
  longest_check_ = std::max(longest_check_, seconds_since(start));
}

/// Warns as soon as the scheduler's lead is too short, and keeps in run.json what was measured: a
/// run that is killed at its time limit writes nothing more.
void Trainer::review_stop_lead() {
  if (checkpointer_->longest_save() > 0)
    stop_lead_.note_save(checkpointer_->longest_save() + longest_check_);
  if (stop_lead_.has_news()) {
    stop_lead_.note_written();
    try {
      journal_.update([this](RunManifest& m) { stop_lead_.write_counters(m.counters); });
    } catch (const Error& error) {
      // A measurement ends no run; a write that matters reports the disk's failure itself.
      log_debug(error.what());
    }
  }
  if (const std::string warning = stop_lead_.take_warning(); !warning.empty())
    journal_.warn(warning);
}

StepMetrics Trainer::train_step() {
  const auto start = Clock::now();
  session_.show_phase(cat("reading the data of step ", progress_.step + 1));
  const Loader::Fetched fetched = loader_->next();
  session_.show_phase(cat("step ", progress_.step + 1));
  journal_.note_ready();
  StepRun step = prepare_step(config_, lr_schedule_, progress_, fetched.batch);
  stop_.add_vote(step.votes);
  checkpointer_->add_votes(step.votes);
  evaluation_clock_.add_vote(step.votes);
  use_->begin_step();
  setup_->train_executor().run(step);
  use_->end_step(step.finite);
  ++progress_.step;
  progress_.tokens += static_cast<int64_t>(step.counted_tokens);
  stop_.read_votes(step.all_votes);
  checkpointer_->read_votes(step.all_votes);
  evaluation_clock_.read_votes(step.all_votes);

  StepMetrics metrics = metrics_of(step);
  metrics.data_wait_seconds = fetched.wait_seconds;
  metrics.step_seconds = seconds_since(start);
  progress_.evaluations.note_loss(metrics.loss, metrics.tokens);
  session_.note_step(metrics.step_seconds);
  stop_lead_.note_step(metrics.step_seconds);
  metrics.tokens_per_second = step.counted_tokens / metrics.step_seconds;
  use_->add_to(metrics);
  step_times_->note(metrics);
  journal_.show_step(progress_, step, metrics, setup_->train_executor());
  count_skipped(step);
  warn_of_no_labels(metrics);
  name_slow_ranks(metrics);
  return metrics;
}

/// Names slow ranks; if it is not known how long a rank stood for others, all take equally long.
void Trainer::name_slow_ranks(const StepMetrics& metrics) {
  if (!slow_ranks_ || !metrics.exposed_communication_seconds) return;
  const double disk = use_->disk_wait_seconds();
  const double compute =
      metrics.step_seconds - metrics.data_wait_seconds - *metrics.exposed_communication_seconds - disk;
  for (const std::string& line : slow_ranks_->step(metrics.step, {std::max(0.0, compute), metrics.data_wait_seconds, disk})) {
    journal_.warn(line);
    journal_.update([&](RunManifest& manifest) { ++manifest.counters["slow_rank_warnings"]; });
  }
}

StepMetrics Trainer::metrics_of(const StepRun& step) const {
  StepMetrics metrics;
  metrics.step = progress_.step;
  metrics.samples = progress_.step * config_.train_batch_size;
  metrics.tokens = static_cast<int64_t>(step.counted_tokens);
  metrics.loss = step.counted_tokens > 0 ? step.loss_sum / step.counted_tokens : std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = step.gradient_norm;
  metrics.learning_rate = step.scalars.learning_rate;
  metrics.exposed_communication_seconds = step.exposed_communication_seconds;
  metrics.skipped = !step.finite;
  if (config_.fp16.enabled) metrics.loss_scale = progress_.skipped.loss_scale();
  return metrics;
}

void Trainer::count_skipped(const StepRun& step) {
  std::optional<NonfiniteSearch> search;
  if (!step.finite && progress_.skipped.wants_place())
    search = find_nonfinite(session_, *setup_, step);
  const std::string warning = progress_.skipped.count(progress_.step, step.finite, search);
  if (warning.empty()) return;
  journal_.warn(warning);
  journal_.update([&](RunManifest& manifest) {
    manifest.counters["skipped_steps"] = progress_.skipped.total();
  });
}

/// Warns once a run that no label counts: possible under packing "concat" with a loss mask.
void Trainer::warn_of_no_labels(const StepMetrics& metrics) {
  if (metrics.tokens > 0 || std::exchange(warned_of_no_labels_, true)) return;
  journal_.warn(cat("step ", metrics.step,
                    ": all labels are masked: the loss is NaN and the gradients are zero",
                    "\n  remedy: a larger batch, or \"packing\": \"documents\", which leaves out rows without such labels"));
}

// Evaluation.

/// Evaluates before the first step; and in a resumed run if a signal came before the evaluation
/// that was due.
void Trainer::evaluate_before_training() {
  if (data_.validation.empty() || progress_.evaluations.last_step() == progress_.step) return;
  const bool first = progress_.step == 0 && total_steps_ > 0;
  if (!first && !(identity_.is_resumed() && evaluation_is_due())) return;
  StepMetrics metrics;
  metrics.step = progress_.step;
  metrics.trained = false;
  metrics.evaluations = recorded_evaluation();
  if (!metrics.evaluations.empty()) {
    take_evaluation(metrics);
  } else if (evaluate(metrics)) {
    journal_.record(metrics);
    if (!has_ended()) write_samples();
  }
  if (!progress_.evaluations.is_best(progress_.step)) return;
  identity_.await_before_saving(stop_);
  checkpointer_->save(progress_, identity_.train());
}

bool Trainer::evaluation_is_due() const {
  return !data_.validation.empty() && evaluation_clock_.is_due(progress_.step, total_steps_);
}

/// Collective: the evaluations that rank 0 finds in metrics.jsonl of a resumed run and wants, each
/// set of a step by itself.
std::vector<StepMetrics> Trainer::recorded_evaluations(
    const std::string& what, const std::function<bool(const StepMetrics&)>& wanted) {
  const std::string lines = session_.first_tells(what, [&] {
    std::string found;
    const std::string path = RunPaths(config_.output_dir).metrics();
    if (!posix_files().exists(path)) return found;
    for (StepMetrics& metrics : read_metrics(path)) {
      metrics.trained = false;
      if (wanted(metrics)) found += metrics_lines(metrics);
    }
    return found;
  });
  std::vector<StepMetrics> all;
  for (const std::string& line : split(lines, '\n'))
    if (std::optional<StepMetrics> metrics = parse_metrics_line(line))
      all.push_back(*std::move(metrics));
  return all;
}

/// Reviews what a checkpoint of an older version may have taken for the best or an improvement: it
/// went by accuracy alone.
void Trainer::review_evaluations() {
  if (!progress_.evaluations.is_of_older_version()) return;
  for (const StepMetrics& metrics : recorded_evaluations(
           "looking for evaluations that are not finite", [this](const StepMetrics& m) {
             return m.step <= progress_.step && is_nonfinite(m.evaluations);
           })) {
    if (!metrics.evaluations[0].is_nonfinite()) continue;
    if (progress_.evaluations.is_best(metrics.step))
      journal_.warn(cat("the evaluation after step ", metrics.step,
                        " is not finite: its checkpoint is no longer the best"));
    progress_.evaluations.forget(metrics.step, metrics.evaluations[0].set);
    checkpointer_->drop_best(metrics.step);
  }
}

/// Reads the evaluation that was made after its checkpoint was written. Empty if the last run made
/// none.
std::vector<EvaluationResult> Trainer::recorded_evaluation() {
  if (!identity_.is_resumed()) return {};
  std::vector<EvaluationResult> results;
  for (StepMetrics& metrics :
       recorded_evaluations("looking for the evaluation of the last step",
                            [this](const StepMetrics& m) { return m.step == progress_.step; }))
    results.push_back(std::move(metrics.evaluations.at(0)));
  const auto is_of = [](const EvaluationResult& result, const NamedSamples& set) { return result.set == set.name; };
  const bool all = std::equal(results.begin(), results.end(), data_.validation.begin(), data_.validation.end(), is_of);
  return all ? results : std::vector<EvaluationResult>{};
}

/// Evaluates the model. Returns false when a signal ended it.
bool Trainer::evaluate(StepMetrics& metrics) {
  session_.show_phase(cat("the evaluation after step ", progress_.step));
  evaluation_clock_.begin();
  std::optional<std::vector<EvaluationResult>> results = evaluate_sets(config_, *setup_, data_.validation, stop_);
  if (!results) {
    journal_.say(cat("validation after step ", progress_.step, " stopped by ", stop_.name()));
    return false;
  }
  metrics.evaluations = *std::move(results);
  take_evaluation(metrics);
  return true;
}

void Trainer::take_evaluation(const StepMetrics& metrics) {
  progress_.evaluations.add(progress_.step, metrics.evaluations);
  warn_of_uncounted_sets(metrics);
  const auto& best = progress_.evaluations.best();
  if (!best) return;
  session_.together("recording the best evaluation", [&] {
    journal_.update([&](RunManifest& manifest) {
      manifest.best = RunManifest::Best{progress_.evaluations.metric(), best->value, best->step};
    });
  });
}

/// Warns once a run of sets without counted tokens.
void Trainer::warn_of_uncounted_sets(const StepMetrics& metrics) {
  if (std::exchange(warned_of_uncounted_sets_, true)) return;
  for (const EvaluationResult& result : metrics.evaluations)
    if (!result.has_value())
      journal_.warn(cat(
          result.set,
          ": no token counts in the sequences that are evaluated, so there is no loss to compare",
          "\n  remedy: raise train.evaluation.samples, or validate on other data"));
}

/// Writes texts, after the same prompts at each evaluation and at the end.
void Trainer::write_samples() {
  if (stop_.reached() || data_.validation.empty() || sampled_step_ == progress_.step) return;
  if (!text_samples_)
    text_samples_.emplace(config_, session_, *setup_, *data_.validation[0].samples, journal_);
  samples_ = text_samples_->write();
  sampled_step_ = progress_.step;
  session_.together("recording the samples of text", [this] { journal_.record(progress_.step, samples_); });
}

// The end.

void Trainer::finish() {
  loader_->shutdown();
  use_->total(session_);
  session_.together("recording what the run used", [this] {
    journal_.update([this](RunManifest& manifest) {
      use_->add_to(manifest);
      manifest.time = step_times_->record();
    });
  });
  session_.allow_work_of_one_rank();
  save_last_checkpoint();
  session_.together("recording the checkpoints", [this] {
    journal_.update([this](RunManifest& manifest) {
      checkpointer_->add_to(manifest);
      stop_lead_.note_save(checkpointer_->longest_save());
      stop_lead_.write_counters(manifest.counters);
    });
  });
  if (!stop_.reached() && config_.model_export.enabled) export_model();
  session_.show_phase("the end of the run");
  write_samples();
  session_.together("finishing the run", [&] { conclude(); });
  if (!withheld_.empty())
    throw Error(ExitCode::kNumerical, withheld_,
                cat("lower the learning rate, and start again from an earlier checkpoint or anew; "
                    "to have the weights all the same: ",
                    convert_command()));
}

/// Says it where the last evaluation is not finite, and gives a reason where there is no better
/// checkpoint to export.
std::string Trainer::why_not_exported() {
  const bool wants_best = config_.model_export.which == ExportWhich::kBest;
  const std::string problem = progress_.evaluations.problem_after(progress_.step);
  const auto& best = progress_.evaluations.best();
  if (wants_best && !best)
    return cat(problem.empty() ? "" : problem + ", and ",
               "no evaluation after a step gave a finite ", progress_.evaluations.metric(),
               ": there is no best checkpoint, and nothing was exported");
  if (problem.empty()) return "";
  if (!wants_best) return problem + ": the weights are not exported as a good model";
  journal_.warn(cat(problem, ": the export is of step ", best->step, ", the best by ",
                    progress_.evaluations.metric()));
  return "";
}

void Trainer::export_model() {
  withheld_ = why_not_exported();
  if (!withheld_.empty()) return;
  if (config_.model_export.which == ExportWhich::kBest) {
    write_samples();  // of the weights of the last step, as at every evaluation
    checkpointer_->load_best(progress_);
  }
  checkpointer_->export_model(stop_);
}

/// Collective: waits up to a minute for the data's fingerprint, then saves the last checkpoint.
/// After a stop signal it saves at once.
void Trainer::save_last_checkpoint() {
  if (stop_.reached()) {
    // One that was begun when the signal came may not be over, and may fail.
    if (progress_.step > 0) checkpointer_->save(progress_, identity_.train());
    return;
  }
  check_replicas();
  identity_.await(stop_);
  if (session_.is_first() && identity_.train().empty() && !checkpointer_->has_saved(progress_.step))
    journal_.say(
        "the last checkpoint does not record the data's fingerprint: not all of the data has been "
        "read");
  checkpointer_->save(progress_, identity_.train());
  if (!stop_.reached() && config_.model_export.enabled) stop_.vote();
}

void Trainer::conclude() {
  if (!session_.is_first()) return;
  identity_.record();
  say_sample();
  for (const std::string& text : use_->texts(session_.world())) journal_.say(text);
  if (const std::string text = step_times_->text(); !text.empty()) journal_.say(text);
  const std::string reason = how_it_ended();
  if (!stop_.reached() && progress_.step < total_steps_) journal_.say(reason);
  journal_.conclude(withheld_.empty() ? stop_.exit_code() : static_cast<int>(ExitCode::kNumerical),
                    withheld_.empty() ? reason : withheld_);
  if (stop_.reached()) log_notice(cat(reason, "; ", how_to_continue()));
}

std::string Trainer::how_it_ended() const {
  if (stop_.reached()) return cat("stopped by ", stop_.name(), " after step ", progress_.step);
  if (progress_.step >= total_steps_) return "done";
  return cat("done, stopped early after step ", progress_.step, " of ", total_steps_, ": ",
             progress_.evaluations.stop_reason());
}

/// Shows the first sample on the terminal.
void Trainer::say_sample() {
  if (stop_.reached() || samples_.empty() || sampled_step_ != progress_.step) return;
  const TextSample& sample = samples_.front();
  journal_.say(cat("\nsample (the validation text's first ", sample.prompt_tokens, " tokens, continued by the model):\n",
                   sample.prompt, " >>>", sample.answer, "\n"));
}

std::string Trainer::how_to_continue() const {
  if (!has_ended() || config_.model_export.which == ExportWhich::kBest || !config_.model_export.enabled)
    return "continue with --resume auto";
  return cat("what is left is the export, which --resume auto makes, or: ", convert_command());
}

std::string Trainer::convert_command() const {
  return cat("ftrun convert ", config_.output_dir, " --out ", export_folder(config_));
}

int train(const TrainRequest& request) {
  install_crash_handler();
  return Trainer(request).run();
}

}  // namespace ftrun

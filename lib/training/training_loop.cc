#include "training/training_loop.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "training/prepare_step.h"

namespace ftrun {

TrainingLoop::TrainingLoop(const Config& config, const LoopPlan& plan, TrainingProgress& progress,
                           LoopDependencies dependencies)
    : config_(config),
      plan_(plan),
      progress_(progress),
      dependencies_(std::move(dependencies)),
      evaluation_clock_({.steps = config.train.evaluation.every,
                         .minutes = config.train.evaluation.every_minutes},
                        RankFlag::kEvaluationDue, plan.is_first, dependencies_.clock) {}

void TrainingLoop::run() {
  warn_of_short_stop_lead();  // with the measurements of an earlier start
  evaluate_at_start();
  while (!has_ended() && !dependencies_.stop.reached()) {
    StepMetrics metrics = train_step();
    // After a stop signal the run will soon be killed: there is time to save, but not to evaluate.
    bool evaluated = false;
    if (!dependencies_.stop.reached() && is_evaluation_due()) evaluated = evaluate(metrics);
    dependencies_.journal.show_phase(
        cat("recording step ", progress_.step));  // rank 0's disk may be slow
    dependencies_.journal.record_step(metrics);
    // The text samples of the last step are written after its checkpoint.
    if (evaluated && !has_ended()) dependencies_.evaluator.write_texts(progress_.step);
    progress_.skipped.refuse_too_many(progress_.step);
    dependencies_.data_identity.record_known_fingerprints();
    check_and_save();
  }
  if (!dependencies_.stop.reached()) progress_.skipped.refuse_if_no_step_trained(progress_.step);
}

/// Compares replicas and saves if that is due after a step, then reviews the stop lead.
void TrainingLoop::check_and_save() {
  const bool saves = dependencies_.saver.will_save(progress_);
  if (saves) dependencies_.data_identity.await_fingerprints_before_saving(dependencies_.stop);
  const int64_t every = config_.train.check_replicas;
  const bool is_check_due = every != 0 && progress_.step % every == 0;
  // Replicas are compared before each checkpoint, so that no checkpoint contains state that a
  // memory error has changed.
  if (is_check_due || saves || dependencies_.stop.reached()) check_replicas();
  if (dependencies_.stop.reached())
    save_now();
  else if (!has_ended() && dependencies_.saver.save_if_due(
                               progress_, dependencies_.data_identity.training_fingerprint()))
    // Saving took time. A stop that was requested during the save must not wait for another step
    // and its save.
    dependencies_.stop.decide_outside_step();
  warn_of_short_stop_lead();
}

/// Saves after a stop signal, without waiting for the data's fingerprint. Says so if a resumed run
/// does not know yet whether its data are those of the run before.
void TrainingLoop::save_now() {
  if (dependencies_.data_identity.is_resumed()) report_unknown_data();
  dependencies_.saver.save(progress_, dependencies_.data_identity.training_fingerprint());
}

void TrainingLoop::report_unknown_data() {
  if (!dependencies_.data_identity.training_fingerprint().empty() ||
      dependencies_.saver.has_saved(progress_.step))
    return;
  dependencies_.journal.print(
      "the last checkpoint does not record the data's fingerprint, because the run ended before it "
      "had read all data: a resume cannot check that the data is the same");
}

/// Compares the replicas of the present state, unless they were compared after this step already,
/// or never are.
void TrainingLoop::check_replicas() {
  if (config_.train.check_replicas == 0 || checked_step_ == progress_.step) return;
  checked_step_ = progress_.step;
  const double start = dependencies_.clock();
  dependencies_.stepper.check_replicas(progress_.step);
  longest_check_seconds_ = std::max(longest_check_seconds_, dependencies_.clock() - start);
}

double TrainingLoop::longest_save_and_check_seconds() const {
  const double save = dependencies_.saver.longest_save_seconds();
  return save > 0 ? save + longest_check_seconds_ : 0;
}

/// Warns as soon as the scheduler's lead is too short, and writes the measurements to run.json now,
/// because a run that is killed at its time limit cannot write them later.
void TrainingLoop::warn_of_short_stop_lead() {
  StopLead& lead = dependencies_.stop_lead;
  if (longest_save_and_check_seconds() > 0) lead.add_save_time(longest_save_and_check_seconds());
  if (lead.has_grown()) {
    lead.mark_costs_written();
    try {
      dependencies_.journal.update_manifest(
          [&lead](RunManifest& manifest) { lead.write_counters(manifest.counters); });
    } catch (const Error& error) {
      // A failure to write measurements does not end the run. If the disk has failed, a more
      // important write will report it.
      log_debug(error.what());
    }
  }
  if (const std::string warning = lead.new_warning(); !warning.empty())
    dependencies_.journal.warn(warning);
}

StepMetrics TrainingLoop::train_step() {
  const double start = dependencies_.clock();
  dependencies_.journal.show_phase(cat("reading the data of step ", progress_.step + 1));
  const Loader::FetchedBatch fetched = dependencies_.next_step_batch();
  dependencies_.journal.show_phase(cat("step ", progress_.step + 1));
  dependencies_.journal.record_first_batch();
  StepRun step = prepare_step(config_, plan_.schedule, progress_, fetched.batch);
  dependencies_.stop.add_flags(step.flags);
  dependencies_.saver.add_flags(step.flags);
  evaluation_clock_.add_flags(step.flags);
  dependencies_.stepper.run(step);
  const StepResult& result = step.result;
  require(result.counted_tokens == static_cast<double>(fetched.batch.counted_tokens_global),
          "a step counts the tokens that the loader has counted");
  ++progress_.step;
  progress_.tokens += static_cast<int64_t>(result.counted_tokens);
  dependencies_.stop.read_flags(result.flags_of_all_ranks);
  dependencies_.saver.read_flags(result.flags_of_all_ranks);
  evaluation_clock_.read_flags(result.flags_of_all_ranks);

  StepMetrics metrics = metrics_of(step);
  metrics.data_wait_seconds = fetched.wait_seconds;
  metrics.step_seconds = dependencies_.clock() - start;
  progress_.evaluations.record_training_loss(metrics.loss, metrics.tokens);
  dependencies_.stop_lead.add_step_time(metrics.step_seconds);
  metrics.tokens_per_second = result.counted_tokens / metrics.step_seconds;
  dependencies_.stepper.add_memory_and_traffic(metrics);
  dependencies_.stepper.record_measurements(metrics);
  dependencies_.journal.print_step_details(progress_, step, metrics);
  record_skipped(step);
  warn_of_no_labels(metrics);
  warn_of_slow_ranks(metrics);
  return metrics;
}

void TrainingLoop::warn_of_slow_ranks(const StepMetrics& metrics) {
  for (const std::string& line : dependencies_.stepper.find_slow_ranks(metrics)) {
    dependencies_.journal.warn(line);
    dependencies_.journal.update_manifest(
        [](RunManifest& manifest) { ++manifest.counters["slow_rank_warnings"]; });
  }
}

StepMetrics TrainingLoop::metrics_of(const StepRun& step) const {
  const StepResult& result = step.result;
  StepMetrics metrics;
  metrics.step = progress_.step;
  metrics.samples = sequences_in_steps(progress_.step, config_);
  metrics.tokens = static_cast<int64_t>(result.counted_tokens);
  metrics.loss = result.counted_tokens > 0 ? result.loss_sum / result.counted_tokens
                                           : std::numeric_limits<double>::quiet_NaN();
  metrics.gradient_norm = result.gradient_norm;
  metrics.learning_rate = step.scalars.learning_rate;
  metrics.exposed_communication_seconds = result.exposed_communication_seconds;
  metrics.skipped = !result.finite;
  if (config_.fp16.enabled) metrics.loss_scale = progress_.skipped.loss_scale();
  return metrics;
}

void TrainingLoop::record_skipped(const StepRun& step) {
  std::optional<NonfiniteSearchResult> search;
  const bool finite = step.result.finite;
  if (!finite && progress_.skipped.needs_nonfinite_search())
    search = dependencies_.stepper.find_nonfinite(step);
  const std::string warning = progress_.skipped.add_step(progress_.step, finite, search);
  if (warning.empty()) return;
  dependencies_.journal.warn(warning);
  dependencies_.journal.update_manifest([this](RunManifest& manifest) {
    manifest.counters["skipped_steps"] = progress_.skipped.total();
  });
}

/// Warns, once per run, that no label of a step counts. This can happen with packing "concat" and a
/// loss mask.
void TrainingLoop::warn_of_no_labels(const StepMetrics& metrics) {
  if (metrics.tokens > 0 || std::exchange(warned_of_no_labels_, true)) return;
  dependencies_.journal.warn(cat(
      "step ", metrics.step, ": all labels are masked: the loss is NaN and the gradients are zero",
      "\n  remedy: a larger batch, or \"packing\": \"documents\", which leaves "
      "out sequences without such labels"));
}

// The functions below evaluate the model.

/// Evaluates before the first step. A resumed run evaluates here only if an evaluation was due at
/// its checkpoint and a signal prevented it.
void TrainingLoop::evaluate_at_start() {
  if (!dependencies_.evaluator.has_sets() || progress_.evaluations.last_step() == progress_.step)
    return;
  const bool first = progress_.step == 0 && plan_.total_steps > 0;
  const bool resumed = dependencies_.data_identity.is_resumed();
  if (!first && !(resumed && is_evaluation_due())) return;
  StepMetrics metrics;
  metrics.step = progress_.step;
  metrics.trained = false;
  // The earlier start may have evaluated after it wrote the checkpoint.
  if (resumed) metrics.evaluations = dependencies_.evaluator.read_results(progress_.step);
  if (!metrics.evaluations.empty()) {
    record_evaluation(metrics);
  } else if (evaluate(metrics)) {
    dependencies_.journal.record_step(metrics);
    if (!has_ended()) dependencies_.evaluator.write_texts(progress_.step);
  }
  if (!progress_.evaluations.is_best(progress_.step)) return;
  dependencies_.data_identity.await_fingerprints_before_saving(dependencies_.stop);
  dependencies_.saver.save(progress_, dependencies_.data_identity.training_fingerprint());
}

bool TrainingLoop::is_evaluation_due() const {
  return dependencies_.evaluator.has_sets() &&
         (progress_.step == plan_.total_steps || evaluation_clock_.is_due(progress_.step));
}

/// Evaluates the model. Returns false if a stop signal ended the evaluation.
bool TrainingLoop::evaluate(StepMetrics& metrics) {
  dependencies_.journal.show_phase(cat("the evaluation after step ", progress_.step));
  evaluation_clock_.mark_begun();
  evaluation_clock_.restart(dependencies_.clock());
  std::optional<std::vector<EvaluationResult>> results =
      dependencies_.evaluator.evaluate(dependencies_.stop);
  if (!results) {
    dependencies_.journal.print(cat("the evaluation after step ", progress_.step, " stopped by ",
                                    dependencies_.stop.signal_name()));
    return false;
  }
  metrics.evaluations = *std::move(results);
  record_evaluation(metrics);
  return true;
}

void TrainingLoop::record_evaluation(const StepMetrics& metrics) {
  progress_.evaluations.add(progress_.step, metrics.evaluations);
  warn_of_uncounted_sets(metrics);
  const auto& best = progress_.evaluations.best();
  if (!best) return;
  dependencies_.journal.update_manifest_collectively(
      "recording the best evaluation", [&](RunManifest& manifest) {
        manifest.best =
            RunManifest::BestRecord{progress_.evaluations.metric(), best->value, best->step};
      });
}

/// Warns, once per run, of sets without counted tokens.
void TrainingLoop::warn_of_uncounted_sets(const StepMetrics& metrics) {
  if (std::exchange(warned_of_uncounted_sets_, true)) return;
  for (const EvaluationResult& result : metrics.evaluations)
    if (!result.has_value())
      dependencies_.journal.warn(
          cat(result.set,
              ": no token of the evaluated sequences counts in the loss, so there is no loss to "
              "compare",
              "\n  remedy: raise train.evaluation.samples, or validate on other data"));
}

// The functions below end the run.

void TrainingLoop::save_last() {
  if (dependencies_.stop.reached()) {
    // A background save that was in progress when the signal came may still fail, so save() waits
    // for it.
    if (progress_.step > 0) save_now();
    return;
  }
  check_replicas();
  dependencies_.data_identity.await_fingerprints(dependencies_.stop);
  report_unknown_data();
  dependencies_.saver.save(progress_, dependencies_.data_identity.training_fingerprint());
  if (!dependencies_.stop.reached() && config_.model_export.enabled)
    dependencies_.stop.decide_outside_step();
}

}  // namespace ftrun

#include "fake_run.h"

#include "base/error.h"

namespace ftrun::testing {

FakeRun::FakeRun(const Config& given, int64_t total_steps)
    : config(given),
      plan{.schedule = {given.scheduler, total_steps}, .total_steps = total_steps},
      progress(config),
      stop([this] { return own_signal; },
           [this](int signal) {
             calls.push_back("agree");
             return agreed_signal == 0 ? signal : agreed_signal;
           }) {
  batch_.counted_tokens_local = batch_.counted_tokens_global = 10;
  next_step_batch = [this] {
    calls.push_back(cat("next ", progress.step + 1));
    return Loader::FetchedBatch{batch_, 0.25};
  };
}

TrainingLoop FakeRun::loop() {
  return TrainingLoop(config, plan, progress,
                      {.next_step_batch = next_step_batch,
                       .stepper = *this,
                       .saver = *this,
                       .evaluator = *this,
                       .journal = *this,
                       .data_identity = *this,
                       .stop = stop,
                       .stop_lead = stop_lead,
                       .clock = [this] { return clock_seconds; }});
}

void FakeRun::run(StepRun& step) {
  const int64_t number = progress.step + 1;
  calls.push_back(cat("run ", number));
  updates.push_back(step.scalars.update);
  scales.push_back(step.scalars.token_loss_factor);
  clock_seconds += seconds_of_step;
  step.result.loss_sum = 20;
  step.result.counted_tokens = 10;
  step.result.gradient_norm = 1;
  step.result.flags_of_all_ranks = step.flags;
  if (const auto found = step_changes.find(number); found != step_changes.end())
    found->second(step);
  step.result.finite =
      step.policy({step.result.loss_sum, step.result.counted_tokens, step.result.gradient_norm})
          .finite;
}

void FakeRun::record_measurements(const StepMetrics& of_step) {
  calls.push_back(cat("measurements ", of_step.step));
}

NonfiniteSearchResult FakeRun::find_nonfinite(const StepRun&) {
  calls.push_back(cat("find ", progress.step));
  return {"rank 1, forward layer 2", false};
}

std::vector<std::string> FakeRun::find_slow_ranks(const StepMetrics& of_step) {
  calls.push_back(cat("slow ", of_step.step));
  return slow_ranks;
}

void FakeRun::check_replicas(int64_t step) {
  calls.push_back(cat("check ", step));
}

bool FakeRun::will_save(const TrainingProgress& now) const {
  return now.evaluations.is_best(now.step) ||
         (config.checkpoint.every > 0 && now.step % config.checkpoint.every == 0);
}

bool FakeRun::save_if_due(TrainingProgress& now, const std::string& data_fingerprint) {
  if (!will_save(now)) return false;
  save(now, data_fingerprint);
  return slow_saves;
}

void FakeRun::save(TrainingProgress& now, const std::string& data_fingerprint) {
  calls.push_back(cat("save ", now.step, data_fingerprint.empty() ? " of unknown data" : ""));
  saved_step_ = now.step;
}

std::vector<EvaluationResult> FakeRun::results_of(double loss) const {
  return {{.set = "validation", .loss = loss, .accuracy = std::nullopt, .tokens = 8}};
}

std::optional<std::vector<EvaluationResult>> FakeRun::evaluate(StopAgreement& agreement) {
  calls.push_back(cat("evaluate ", progress.step));
  if (stopped_evaluation == progress.step) {
    agreement.decide_outside_step();
    return std::nullopt;
  }
  const auto loss = losses.find(progress.step);
  return results_of(loss == losses.end() ? 1 : loss->second);
}

std::vector<EvaluationResult> FakeRun::read_results(int64_t step) {
  calls.push_back(cat("recorded ", step));
  const auto loss = recorded_losses.find(step);
  return loss == recorded_losses.end() ? std::vector<EvaluationResult>{} : results_of(loss->second);
}

void FakeRun::write_texts(int64_t step) {
  calls.push_back(cat("texts ", step));
}

void FakeRun::await_fingerprints(StopAgreement&) {
  calls.push_back("await");
}

void FakeRun::await_fingerprints_before_saving(StopAgreement&) {
  calls.push_back("await before saving");
}

}  // namespace ftrun::testing

#include "exec/evaluation.h"

#include <cmath>
#include <ratio>

#include "base/clock.h"
#include "base/error.h"

namespace ftrun {
namespace {

void refuse_uncounted(const ValidationReader& reader, const SampleSet& data) {
  if (reader.counted_tokens_global() > 0) return;
  throw Error(ExitCode::kBadInput,
              cat(data.data().name(), ": no token counts in the first ", reader.sequences(),
                  " sequences, so they have no loss"),
              "raise train.evaluation.samples, or validate on other data");
}

/// `is_last`: what follows a signal is not worth its time.
std::optional<EvaluationResult> evaluate_set(const Config& config, TrainingSetup& setup, const NamedSamples& set,
                                             bool is_last, StopAgreement& stop) {
  const auto start = std::chrono::steady_clock::now();
  const StateOptions& place = setup.plan().options.state;
  ValidationReader reader(*set.samples, config.train.evaluation.samples, config.train_micro_batch_size_per_gpu,
                          data_ranks(place), data_index(place), setup.evaluate().model.vocab_rows,
                          setup.plan().evaluation_micro_batches);
  refuse_uncounted(reader, *set.samples);
  double loss = 0, correct = 0;
  for (int64_t round = 0; round < reader.rounds(); ++round) {
    StepRun step;
    step.micro_batches = reader.read(round);
    step.caller_value = stop.own_vote();
    setup.evaluate_executor().run(step);
    loss += step.loss_sum;
    correct += step.correct_tokens;
    stop.take(step.caller_sum);
    if (stop.reached() && (round + 1 < reader.rounds() || !is_last)) return std::nullopt;
  }
  const auto tokens = static_cast<double>(reader.counted_tokens_global());
  return EvaluationResult{.set = set.name,
                          .loss = loss / tokens,
                          .accuracy = correct / tokens,
                          .tokens = reader.counted_tokens_global(),
                          .seconds = seconds_since(start)};
}

/// Below the votes of Checkpointer.
constexpr double kEvaluationDue = 0x1p-22;

}  // namespace

std::optional<std::vector<EvaluationResult>> evaluate_sets(const Config& config, TrainingSetup& setup,
                                                           const std::vector<NamedSamples>& sets,
                                                           StopAgreement& stop) {
  std::vector<EvaluationResult> results;
  for (const NamedSamples& set : sets) {
    std::optional<EvaluationResult> result = evaluate_set(config, setup, set, &set == &sets.back(), stop);
    if (!result) return std::nullopt;
    results.push_back(*std::move(result));
  }
  return results;
}

double EvaluationClock::own_vote() const {
  if (!session_.is_first() || config_.every_minutes == 0) return 0;
  const std::chrono::duration<double, std::ratio<60>> minutes = std::chrono::steady_clock::now() - last_begun_;
  return minutes.count() >= config_.every_minutes ? kEvaluationDue : 0;
}

void EvaluationClock::take(double votes) {
  const double mine = std::fmod(votes, 2 * kEvaluationDue);
  due_by_time_ = mine >= kEvaluationDue;
}

bool EvaluationClock::is_due(int64_t step, int64_t last_step) const {
  return due_by_time_ || step == last_step || (config_.every > 0 && step % config_.every == 0);
}

void EvaluationClock::begin() {
  due_by_time_ = false;
  last_begun_ = std::chrono::steady_clock::now();
}

}  // namespace ftrun

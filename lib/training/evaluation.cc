#include "training/evaluation.h"

#include <chrono>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "data/validation_reader.h"

namespace ftrun {
namespace {

std::string uncounted_text(const SequenceSet& data, int64_t sequences) {
  return cat(data.data().name(), ": no token counts in the first ", sequences,
             " sequences, so they have no loss");
}

/// Throws an Error if the best checkpoint is to be exported, but the set of its metric has no
/// counted tokens: such a run would export nothing.
void refuse_uncounted_best(const Config& config, const ValidationSet& set, int64_t sequences) {
  const std::string& metric = config.checkpoint.keep_best.metric;
  if (!config.model_export.enabled || config.model_export.which != ExportedStep::kBest) return;
  if (!metric.starts_with(set.name + ".")) return;
  throw Error(
      ExitCode::kBadInput,
      cat(uncounted_text(*set.sequences, sequences), "; the best checkpoint by ", metric,
          ", which export.which: best exports, would never exist"),
      "raise train.evaluation.samples, validate on other data, or keep the best by another set");
}

/// Evaluates one set. Returns nothing if the ranks agreed to stop, except after the last pass of
/// the last set (`is_last`), when the results are complete.
std::optional<EvaluationResult> evaluate_set(const Config& config, TrainingSetup& setup,
                                             const ValidationSet& set, bool is_last,
                                             StopAgreement& stop) {
  const auto start = std::chrono::steady_clock::now();
  const GroupPlace place = data_parallel_place(setup.plan().options.state);
  ValidationReader reader(*set.sequences, config.train.evaluation.samples,
                          config.train_micro_batch_size_per_gpu, place.count, place.index,
                          setup.evaluation_plan().model.vocab_rows,
                          setup.plan().evaluation_micro_batches);
  if (reader.counted_tokens_global() == 0) {
    refuse_uncounted_best(config, set, reader.sequences());
    return EvaluationResult{.set = set.name,
                            .loss = std::numeric_limits<double>::quiet_NaN(),
                            .seconds = seconds_since(start)};
  }
  double loss = 0, correct = 0;
  for (int64_t pass = 0; pass < reader.passes(); ++pass) {
    ForwardRun run;
    run.micro_batches = reader.read(pass);
    stop.add_flags(run.flags);
    setup.evaluation_executor().run_forward(run);
    loss += run.result.loss_sum;
    correct += run.result.correct_tokens;
    stop.read_flags(run.result.flags_of_all_ranks);
    if (stop.reached() && (pass + 1 < reader.passes() || !is_last)) return std::nullopt;
  }
  const auto tokens = static_cast<double>(reader.counted_tokens_global());
  return EvaluationResult{.set = set.name,
                          .loss = loss / tokens,
                          .accuracy = correct / tokens,
                          .tokens = reader.counted_tokens_global(),
                          .seconds = seconds_since(start)};
}

}  // namespace

std::optional<std::vector<EvaluationResult>> evaluate_sets(const Config& config,
                                                           TrainingSetup& setup,
                                                           const std::vector<ValidationSet>& sets,
                                                           StopAgreement& stop) {
  std::vector<EvaluationResult> results;
  for (const ValidationSet& set : sets) {
    std::optional<EvaluationResult> result =
        evaluate_set(config, setup, set, &set == &sets.back(), stop);
    if (!result) return std::nullopt;
    results.push_back(*std::move(result));
  }
  return results;
}

}  // namespace ftrun

#include "exec/validation.h"

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

}  // namespace

std::optional<double> validation_loss(const Config& config, TrainingSetup& setup,
                                      const SampleSet& data, StopAgreement& stop) {
  const StateOptions& place = setup.plan().options.state;
  ValidationReader reader(data, config.train.evaluation.samples,
                          config.train_micro_batch_size_per_gpu, data_ranks(place),
                          data_index(place), setup.evaluate().model.vocab_rows);
  refuse_uncounted(reader, data);
  double loss = 0;
  for (int64_t round = 0; round < reader.rounds(); ++round) {
    StepRun step;
    step.micro_batches = {&reader.read(round), 1};
    step.caller_value = stop.own_vote();
    setup.evaluate_executor().run(step);
    loss += step.loss_sum;
    stop.take(step.caller_sum);
    if (stop.reached() && round + 1 < reader.rounds()) return std::nullopt;
  }
  return loss / static_cast<double>(reader.counted_tokens_global());
}

}  // namespace ftrun

#include "inputs/run_data.h"

#include "config/evaluation_sets.h"
#include "data/conversations.h"
#include "data/fingerprint.h"
#include "inputs/sequence_options.h"

namespace ftrun {

RunData open_run_data(const Config& config) {
  for (const auto* paths : {&config.data.train, &config.data.validation})
    for (const Error& error : check_conversation_lengths(*paths, sequence_options(config)))
      throw error;
  RunData data;
  data.train = std::make_unique<SequenceSet>(config.data.train, training_options(config));
  for (const EvaluationSet& set : evaluation_sets(config.data))
    data.validation.push_back(
        {set.name, std::make_unique<SequenceSet>(set.paths, sequence_options(config))});
  return data;
}

void refuse_unknown_tokens(const RunData& data, int64_t vocab_rows) {
  check_recorded_ids(data.train->data(), vocab_rows);
  for (const ValidationSet& set : data.validation)
    check_recorded_ids(set.sequences->data(), vocab_rows);
}

int64_t steps_of_run(const Config& config, const SequenceSet& train) {
  if (config.train.steps > 0) return config.train.steps;
  return train.steps_for_epochs(config.train.epochs, config.train_batch_size,
                                config.data.drop_last);
}

LoaderOptions loader_options(const Config& config, const StepPlan& plan, int64_t first_step,
                             int64_t end_step) {
  const GroupPlace place = data_parallel_place(plan.options.state);
  LoaderOptions options;
  options.layout = {.micro_batch_size = config.train_micro_batch_size_per_gpu,
                    .micro_batches = config.gradient_accumulation_steps,
                    .ranks = place.count};
  options.rank = place.index;
  options.vocab_rows = plan.train.model.vocab_rows;
  options.shuffle = config.data.shuffle;
  options.drop_last = config.data.drop_last;
  options.seed = static_cast<uint64_t>(config.train.seed);
  options.first_step = first_step;
  options.end_step = end_step;
  options.prefetched_steps = static_cast<int>(config.data.prefetch);
  return options;
}

}  // namespace ftrun

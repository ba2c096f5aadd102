#include "engine/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/round_up.h"
#include "kernels/kernels.h"
#include "program/step_builder.h"

namespace ftrun {
namespace {

/// Makes a sequence that begins with the tokens. The rest is filled with token 0, which does not
/// affect them, because attention is causal.
MicroBatch make_sequence(std::span<const int32_t> tokens, int64_t sequence_length) {
  MicroBatch batch;
  const auto size = static_cast<size_t>(sequence_length);
  batch.tokens.assign(size, 0);
  std::copy(tokens.begin(), tokens.end(), batch.tokens.begin());
  batch.labels.assign(size, -100);
  batch.starts.assign(size, 0);
  batch.positions.resize(size);
  std::iota(batch.positions.begin(), batch.positions.end(), 0);
  return batch;
}

/// The result of choosing a token if the logits are not finite. It ends the text.
constexpr int32_t kNoToken = -1;

bool are_finite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(),
                     [](float logit) { return std::isfinite(logit); });
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t sample_token(std::span<const float> logits, double temperature, std::mt19937_64& random) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights(logits.size());
  std::transform(logits.begin(), logits.end(), weights.begin(),
                 [&](float logit) { return std::exp((logit - top) / temperature); });
  return static_cast<int32_t>(
      std::discrete_distribution<int>(weights.begin(), weights.end())(random));
}

}  // namespace

std::vector<int32_t> generate_tokens(Executor& executor, const ProgramPlan& plan,
                                     const RankMemory& memory, std::span<const int32_t> prompt,
                                     const GenerateOptions& options, Communicator* group) {
  require(!prompt.empty(), "a prompt has at least one token");
  const ModelDescription& model = plan.model;
  const BufferId logits_buffer = find_result_buffer(plan.program);
  const int64_t sequence_length = model.batch.sequence_length;
  std::vector<int32_t> text_ids(prompt.begin(), prompt.end());
  std::mt19937_64 random(options.seed);
  // The logits of a token lie in blocks, one for the vocabulary rows of each tensor-parallel rank.
  // Rows after the vocabulary are padding.
  const int64_t blocks = model.split.degree;
  const int64_t row_bytes = divide_up(model.vocab_rows, blocks) * dtype_bytes(model.dtypes.compute);
  std::vector<std::byte> row(static_cast<size_t>(row_bytes * blocks));
  std::vector<float> scores(static_cast<size_t>(model.vocab_rows));
  for (int64_t i = 0; i < options.tokens && !(options.should_stop && options.should_stop()); ++i) {
    const auto context_tokens = static_cast<size_t>(
        std::min<int64_t>(sequence_length, static_cast<int64_t>(text_ids.size())));
    const MicroBatch batch = make_sequence(
        {text_ids.data() + text_ids.size() - context_tokens, context_tokens}, sequence_length);
    ForwardRun run;
    run.micro_batches = {&batch, 1};
    executor.run_forward(run);
    for (int64_t block = 0; options.has_logits && block < blocks; ++block)
      memory.read(plan.program,
                  {logits_buffer,
                   (block * sequence_length + static_cast<int64_t>(context_tokens - 1)) * row_bytes,
                   row_bytes},
                  row.data() + block * row_bytes);
    // A rank without logits chooses an arbitrary token; the broadcast replaces it by the choice of
    // the sampling rank.
    convert(row.data(), model.dtypes.compute, scores.data(), DType::kF32, model.vocab_rows);
    int32_t next = kNoToken;
    if (!options.has_logits || are_finite(scores))
      next = options.temperature > 0 ? sample_token(scores, options.temperature, random)
                                     : argmax(scores);
    if (group != nullptr)
      group->broadcast(&next, 1, DType::kI32, options.sampling_rank, {"sample"}).wait();
    if (next == kNoToken) break;
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), next) != options.stop_ids.end())
      break;
    text_ids.push_back(next);
  }
  return {text_ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text_ids.end()};
}

}  // namespace ftrun

#include "training/text_generation.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

#include "axes/mesh.h"
#include "base/file.h"
#include "data/sequence_reader.h"
#include "engine/generate.h"

namespace ftrun {
namespace {

/// Returns the beginning of the document at [begin, end) of a sequence: all tokens before the first
/// token that is trained on, or `count` tokens if all tokens except the first are trained on. The
/// label at a position is the next token.
std::vector<int32_t> prompt_of_document(const MicroBatch& sequence, size_t begin, size_t end,
                                        int64_t count) {
  size_t context = begin;
  while (context < end && sequence.labels[context] < 0) ++context;
  const bool masked = context > begin && context < end;
  const size_t stop = masked ? context + 1 : std::min(end, begin + static_cast<size_t>(count));
  return {sequence.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
          sequence.tokens.begin() + static_cast<std::ptrdiff_t>(stop)};
}

/// Finds the first position of each document of a sequence, and the end of the last document,
/// without padding.
std::vector<size_t> find_document_bounds(const MicroBatch& sequence) {
  std::vector<size_t> bounds;
  size_t end = sequence.tokens.size();
  while (end > 0 && sequence.labels[end - 1] < 0 &&
         sequence.tokens[end - 1] == sequence.tokens.back())
    --end;
  for (size_t i = 0; i < end; ++i)
    if (static_cast<size_t>(sequence.starts[i]) == i) bounds.push_back(i);
  bounds.push_back(end);
  return bounds;
}

/// Returns the path of the tokenizer for text samples; "" if the config asks for none, or the model
/// folder has no tokenizer.json.
std::string sample_tokenizer_path(const Config& config, const TrainingSetup& setup) {
  const std::string tokenizer = setup.folder().path() + "/tokenizer.json";
  const bool is_read = config.train.generate.prompt_tokens > 0 && posix_files().exists(tokenizer);
  return is_read ? tokenizer : "";
}

}  // namespace

std::optional<Detokenizer> read_detokenizer(const Config& config, const TrainingSetup& setup) {
  const std::string tokenizer = sample_tokenizer_path(config, setup);
  if (tokenizer.empty()) return std::nullopt;
  return Detokenizer::parse(read_file(tokenizer), tokenizer);
}

int64_t detokenizer_bytes(const Config& config, const TrainingSetup& setup) {
  std::error_code error;
  const auto file_bytes = std::filesystem::file_size(sample_tokenizer_path(config, setup), error);
  if (error) return 0;
  // The text; and of each token a node of the parsed vocabulary and one of the map by ids, whose
  // strings have blocks of their own if they are long. Added tokens need more, but are few.
  constexpr int64_t kOfToken = 240;
  return static_cast<int64_t>(file_bytes) + kOfToken * setup.model_config().vocab_rows;
}

std::vector<std::vector<int32_t>> choose_sample_prompts(const Config& config, TrainingSetup& setup,
                                                        const SequenceSet& validation) {
  const ModelDescription& model = setup.generation_plan().model;
  const auto max_prompts = static_cast<size_t>(config.train.generate.prompts);
  const int64_t max_tokens =
      std::min(config.train.generate.prompt_tokens, model.batch.sequence_length);
  std::vector<std::vector<int32_t>> prompts;
  SequenceReader reader(validation, model.vocab_rows);
  MicroBatch batch;
  for (int64_t sequence = 0; sequence < validation.size() && prompts.size() < max_prompts;
       ++sequence) {
    reader.reset(batch, 1);
    reader.fill(batch, 0, sequence);
    const std::vector<size_t> bounds = find_document_bounds(batch);
    for (size_t i = 0; i + 1 < bounds.size() && prompts.size() < max_prompts; ++i)
      prompts.push_back(prompt_of_document(batch, bounds[i], bounds[i + 1], max_tokens));
  }
  return prompts;
}

TextSample generate_sample(const Config& config, TrainingSetup& setup,
                           const std::vector<int32_t>& prompt, const Detokenizer* detokenizer,
                           const std::function<bool()>& stop) {
  const GenerateConfig& generate_config = config.train.generate;
  // The pipeline stage with the head has the logits.
  const StateOptions& state = setup.plan().options.state;
  const int head_stage = state.pipeline.last_stage();
  const GenerateOptions options{
      .tokens = generate_config.tokens,
      .temperature = generate_config.temperature,
      .seed = static_cast<uint64_t>(config.train.seed),
      .stop_ids = setup.model_config().eos_ids,
      .sampling_rank = state_mesh(state).rank_at({.pipeline = head_stage}),
      .has_logits = state.pipeline_stage == head_stage,
      .should_stop = stop};
  Communicator* rank_communicator =
      setup.needs_all_ranks() ? setup.communicators().host_world : nullptr;
  const std::vector<int32_t> text =
      generate_tokens(setup.generation_executor(), setup.generation_plan(), setup.memory(), prompt,
                      options, rank_communicator);
  if (detokenizer == nullptr) return {};
  return {static_cast<int64_t>(prompt.size()), detokenizer->decode(prompt),
          detokenizer->decode(text)};
}

}  // namespace ftrun

#include "training/text_sampler.h"

#include <string>

#include "base/error.h"
#include "training/stop_signal.h"

namespace ftrun {

bool TextSampler::should_generate() {
  if (!should_generate_)
    should_generate_ = config_.train.generate.prompt_tokens > 0 &&
                       session_.broadcast_decision("reading the tokenizer", [&] {
                         detokenizer_ = read_detokenizer(config_, setup_);
                         return detokenizer_.has_value();
                       });
  return *should_generate_;
}

std::vector<TextSample> TextSampler::generate() {
  try {
    if (!should_generate()) return {};
    if (!setup_.needs_all_ranks()) return generate_on_rank_0();
    prepare();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPeerLost || error.code() == ExitCode::kBug) throw;
    should_generate_ = false;
    journal_.warn(cat("no sample of text: ", error.message()));
    return {};
  }
  // If a single rank fails, its Error ends the run, because the other ranks wait for it in a
  // collective.
  return generate_on_all_ranks();
}

/// Writes the texts on rank 0 alone; the other ranks wait as long as it is alive.
std::vector<TextSample> TextSampler::generate_on_rank_0() {
  std::vector<TextSample> samples;
  session_.run_on_all_ranks("writing samples of text", [&] {
    if (session_.is_first()) samples = generate_on_all_ranks();
  });
  return samples;
}

std::vector<TextSample> TextSampler::generate_on_all_ranks() {
  prepare();
  signal_ = 0;
  std::vector<TextSample> samples;
  for (const std::vector<int32_t>& prompt : prompts_) {
    samples.push_back(generate_sample(config_, setup_, prompt,
                                      detokenizer_ ? &*detokenizer_ : nullptr,
                                      [this] { return agree_on_stop(); }));
    if (signal_ == 0) continue;
    journal_.print(cat("no sample of text: ", signal_name(signal_), " ended it"));
    return {};
  }
  if (!detokenizer_) samples.clear();
  return samples;
}

/// Prepares the texts at the first call. If all ranks write together, a failure of one rank must
/// make all ranks fail.
void TextSampler::prepare() {
  if (!prompts_.empty()) return;
  const auto read = [&] { prompts_ = choose_sample_prompts(config_, setup_, validation_); };
  if (setup_.needs_all_ranks())
    session_.run_on_all_ranks("preparing the samples of text", read);
  else
    read();
}

bool TextSampler::agree_on_stop() {
  signal_ = setup_.needs_all_ranks() ? session_.agree_on_stop(stop_signal()) : stop_signal();
  return signal_ != 0;
}

}  // namespace ftrun

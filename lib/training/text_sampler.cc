#include "training/text_sampler.h"

#include <string>

#include "base/error.h"
#include "training/stop_signal.h"

namespace ftrun {

bool TextSampler::is_wanted() {
  if (!is_wanted_)
    is_wanted_ = config_.train.generate.prompt_tokens > 0 &&
                 session_.broadcast_decision("reading the tokenizer", [&] {
                   detokenizer_ = read_detokenizer(config_, setup_);
                   return detokenizer_.has_value();
                 });
  return *is_wanted_;
}

std::vector<TextSample> TextSampler::generate() {
  try {
    if (!is_wanted()) return {};
    if (!setup_.needs_all_ranks()) return generate_on_first();
    prepare();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPeerLost || error.code() == ExitCode::kBug) throw;
    is_wanted_ = false;
    journal_.warn(cat("no sample of text: ", error.message()));
    return {};
  }
  // If a single rank fails, its Error ends the run, because the other ranks wait for it in a
  // collective.
  return generate_all();
}

/// Writes the texts on rank 0 alone; the other ranks wait as long as it is alive.
std::vector<TextSample> TextSampler::generate_on_first() {
  std::vector<TextSample> samples;
  session_.run_on_all_ranks("writing samples of text", [&] {
    if (session_.is_first()) samples = generate_all();
  });
  return samples;
}

std::vector<TextSample> TextSampler::generate_all() {
  prepare();
  signal_ = 0;
  std::vector<TextSample> samples;
  for (const std::vector<int32_t>& prompt : prompts_) {
    samples.push_back(sample_text(config_, setup_, prompt, detokenizer_ ? &*detokenizer_ : nullptr,
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
  const auto read = [&] { prompts_ = sample_prompts(config_, setup_, validation_); };
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

#include "exec/text_sample.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "exec/results.h"
#include "exec/stop_signal.h"

namespace ftrun {
namespace {

/// One rank's part in writing the sample.
class SampleWriting {
 public:
  SampleWriting(const Config& config, Session& session, TrainingSetup& setup, RunJournal& journal)
      : config_(config), session_(session), setup_(setup), journal_(journal) {}

  /// Rank 0 alone computes it unless it cannot; no rank may then fail alone.
  std::string write(const SampleSet& validation) {
    std::optional<Detokenizer> detokenizer;
    const bool wanted = session_.first_decides("reading the tokenizer", [&] {
      detokenizer = read_detokenizer(config_, setup_);
      return detokenizer.has_value();
    });
    if (!wanted || (!session_.is_first() && !setup_.needs_all_ranks())) return "";
    const std::vector<int32_t> prompt = prepare(validation);
    const std::string text = sample_text(
        config_, setup_, prompt, detokenizer ? &*detokenizer : nullptr, [this] { return stops(); });
    if (signal_ == 0) return text;
    journal_.say(cat("no sample of text: ", signal_name(signal_), " ended it"));
    return "";
  }

 private:
  std::vector<int32_t> prepare(const SampleSet& validation) {
    std::vector<int32_t> prompt;
    const auto read = [&] { prompt = sample_prompt(config_, setup_, validation); };
    if (setup_.needs_all_ranks())
      session_.together("preparing the sample of text", read);
    else
      read();
    return prompt;
  }

  /// All else is done then: the run has come to its end, whatever asks it to stop.
  bool stops() {
    signal_ = setup_.needs_all_ranks() ? session_.vote_to_stop(stop_signal()) : stop_signal();
    return signal_ != 0;
  }

  const Config& config_;
  Session& session_;
  TrainingSetup& setup_;
  RunJournal& journal_;
  int signal_ = 0;
};

}  // namespace

std::string write_sample(const Config& config, Session& session, TrainingSetup& setup,
                         const SampleSet& validation, RunJournal& journal) {
  try {
    return SampleWriting(config, session, setup, journal).write(validation);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPeerLost || error.code() == ExitCode::kBug) throw;
    journal.warn(cat("no sample of text: ", error.message()));
    return "";
  }
}

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/sequence_set.h"
#include "engine/setup.h"
#include "report/text_samples.h"
#include "training/text_generation.h"
#include "training/run_journal.h"
#include "training/session.h"

namespace ftrun {

/// TextSampler generates text samples: the model continues the beginnings of validation documents.
/// The beginnings are the same at each evaluation.
class TextSampler {
 public:
  /// Keeps references to all arguments.
  TextSampler(const Config& config, Session& session, TrainingSetup& setup,
              const SequenceSet& validation, RunJournal& journal)
      : config_(config),
        session_(session),
        setup_(setup),
        validation_(validation),
        journal_(journal) {}

  /// Generates texts with the current weights. Collective; rank 0 returns the texts. Returns none
  /// if the config requests none, after a signal, or if they cannot be generated. In the last case
  /// rank 0 reports the reason once, because a run can train without text samples. If all ranks
  /// generate together and a single rank fails, it throws its Error.
  std::vector<TextSample> generate();

 private:
  bool should_generate();
  std::vector<TextSample> generate_on_rank_0();
  std::vector<TextSample> generate_on_all_ranks();
  void prepare();
  bool agree_on_stop();

  const Config& config_;
  Session& session_;
  TrainingSetup& setup_;
  const SequenceSet& validation_;
  RunJournal& journal_;
  /// The decision whether texts are written; unknown before the first call.
  std::optional<bool> should_generate_;
  std::optional<Detokenizer> detokenizer_;
  std::vector<std::vector<int32_t>> prompts_;
  int signal_ = 0;
};

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/config.h"
#include "data/sample_set.h"
#include "engine/setup.h"
#include "report/text_samples.h"
#include "training/results.h"
#include "training/run_journal.h"
#include "training/session.h"

namespace ftrun {

/// TextSamples generates the model's continuations of beginnings of validation documents, the same
/// beginnings at each evaluation.
class TextSamples {
 public:
  /// Borrows all arguments.
  TextSamples(const Config& config, Session& session, TrainingSetup& setup,
              const SampleSet& validation, RunJournal& journal)
      : config_(config),
        session_(session),
        setup_(setup),
        validation_(validation),
        journal_(journal) {}

  /// Generates texts with the present weights. Collective; rank 0 returns the texts. Returns none
  /// where the config requests none, after a signal, or if they cannot be generated: rank 0 then
  /// reports the reason once, because a run without texts can still train. Where all ranks generate
  /// together and a single one fails, its Error is thrown.
  std::vector<TextSample> write();

 private:
  bool wanted();
  std::vector<TextSample> write_together();
  std::vector<TextSample> write_all();
  void prepare();
  bool stops();

  const Config& config_;
  Session& session_;
  TrainingSetup& setup_;
  const SampleSet& validation_;
  RunJournal& journal_;
  /// The answer to whether texts are written; unknown before the first call.
  std::optional<bool> wanted_;
  std::optional<Detokenizer> detokenizer_;
  std::vector<std::vector<int32_t>> prompts_;
  int signal_ = 0;
};

}  // namespace ftrun

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

/// TextSamples writes the model's texts after the beginnings of validation documents, the same at
/// each evaluation.
class TextSamples {
 public:
  /// Borrows all.
  TextSamples(const Config& config, Session& session, TrainingSetup& setup,
              const SampleSet& validation, RunJournal& journal)
      : config_(config),
        session_(session),
        setup_(setup),
        validation_(validation),
        journal_(journal) {}

  /// Writes the texts of the model as it is now. Collective; they are returned on rank 0. None
  /// where the config asks for none, a signal ends it, or they cannot be written: rank 0 then says
  /// why, once, as a run that cannot write a text still trains. Where all ranks write and a single
  /// one fails, its Error.
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
  /// The answer whether texts are written; unknown before the first.
  std::optional<bool> wanted_;
  std::optional<Detokenizer> detokenizer_;
  std::vector<std::vector<int32_t>> prompts_;
  int signal_ = 0;
};

}  // namespace ftrun

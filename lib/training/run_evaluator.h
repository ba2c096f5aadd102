#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/setup.h"
#include "inputs/run_data.h"
#include "training/loop_dependencies.h"
#include "training/run_journal.h"
#include "training/session.h"
#include "training/text_sampler.h"

namespace ftrun {

/// RunEvaluator evaluates a run's model on its validation sets, and generates text samples with it.
class RunEvaluator : public Evaluator {
 public:
  /// Keeps references to all arguments. No text is written once `stop` is reached.
  RunEvaluator(const Config& config, Session& session, TrainingSetup& setup, const RunData& data,
               RunJournal& journal, const StopAgreement& stop)
      : config_(config),
        session_(session),
        setup_(setup),
        data_(data),
        journal_(journal),
        stop_(stop) {}

  bool has_sets() const override { return !data_.validation.empty(); }
  std::optional<std::vector<EvaluationResult>> evaluate(StopAgreement& stop) override;
  std::vector<EvaluationResult> read_results(int64_t step) override;
  void write_texts(int64_t step) override;

  /// Shows the first text on the terminal, if it was written with the weights after `step`.
  void print_sample(int64_t step);

 private:
  const Config& config_;
  Session& session_;
  TrainingSetup& setup_;
  const RunData& data_;
  RunJournal& journal_;
  const StopAgreement& stop_;
  std::optional<TextSampler> text_sampler_;
  /// The step after which text samples were last written, and the samples.
  int64_t sampled_step_ = -1;
  std::vector<TextSample> samples_;
};

}  // namespace ftrun

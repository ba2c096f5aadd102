#include "training/run_evaluator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "training/evaluation.h"

namespace ftrun {

std::optional<std::vector<EvaluationResult>> RunEvaluator::evaluate(StopAgreement& stop) {
  return evaluate_sets(config_, setup_, data_.validation, stop);
}

std::vector<EvaluationResult> RunEvaluator::read_results(int64_t step) {
  const std::string lines =
      session_.broadcast_text("looking for the evaluation of the last step", [&] {
        std::string lines_of_step;
        const std::string path = RunPaths(config_.output_dir).metrics();
        if (!posix_files().exists(path)) return lines_of_step;
        for (StepMetrics& metrics : read_metrics(path)) {
          metrics.trained = false;
          if (metrics.step == step) lines_of_step += metrics_lines(metrics);
        }
        return lines_of_step;
      });
  std::vector<EvaluationResult> results;
  for (const std::string& line : split(lines, '\n'))
    if (std::optional<StepMetrics> metrics = parse_metrics_line(line))
      results.push_back(std::move(metrics->evaluations.at(0)));
  const auto is_result_of = [](const EvaluationResult& result, const ValidationSet& set) {
    return result.set == set.name;
  };
  const bool has_all_sets = std::equal(results.begin(), results.end(), data_.validation.begin(),
                                       data_.validation.end(), is_result_of);
  return has_all_sets ? results : std::vector<EvaluationResult>{};
}

/// Writes text samples, using the same prompts at each evaluation and at the end.
void RunEvaluator::write_texts(int64_t step) {
  if (stop_.reached() || data_.validation.empty() || sampled_step_ == step) return;
  if (!text_sampler_)
    text_sampler_.emplace(config_, session_, setup_, *data_.validation[0].sequences, journal_);
  samples_ = text_sampler_->generate();
  sampled_step_ = step;
  session_.run_on_all_ranks("recording the samples of text",
                            [&] { journal_.record_texts(step, samples_); });
}

void RunEvaluator::print_sample(int64_t step) {
  if (stop_.reached() || samples_.empty() || sampled_step_ != step) return;
  const TextSample& sample = samples_.front();
  journal_.print(cat("\nsample (the validation text's first ", sample.prompt_tokens,
                     " tokens, continued by the model):\n", sample.prompt, " >>>", sample.answer,
                     "\n"));
}

}  // namespace ftrun

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "config/evaluation_sets.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

/// Returns whether a name is valid for a set. Names appear in file names, in tables, and before a
/// dot.
bool is_set_name(std::string_view name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !name.empty() && name.size() <= 40 && name.find_first_not_of(kAllowed) == name.npos;
}

void check_set_names(ResolveState& r) {
  const DataConfig& data = r.config.data;
  if (!data.validation_names.empty() && data.validation_names.size() != data.validation.size())
    r.error("data.validation_names",
            cat("data.validation_names: ", data.validation_names.size(), " names for ",
                data.validation.size(), " files"),
            "give each entry of data.validation its set's name, or write data.validation: {NAME: "
            "files}");
  for (const std::string& name : data.validation_names)
    if (!is_set_name(name) || name == "train")
      r.error("data.validation_names",
              cat("data.validation: a set cannot be called ", '"', name, '"'),
              "use up to 40 letters, digits, _ and -; train is the training data's name");
}

void check_metric(ResolveState& r, const std::string& key, const std::string& metric) {
  if (metric.empty() || find_evaluation_metric(r.config.data, metric)) return;
  const std::vector<std::string> names = metric_names(r.config.data);
  r.error(key, cat(key, ": there is no metric ", '"', metric, '"'),
          names.empty()
              ? "name a validation set (data.validation): nothing is evaluated without one"
              : cat("choose one of: ", join(names, ", ")));
}

/// Checks that the run has evaluations between the first and the last step, if keys depend on them.
void check_interval(ResolveState& r) {
  const Config& c = r.config;
  if (c.train.evaluation.every > 0 || c.train.evaluation.every_minutes > 0) return;
  constexpr const char* kNone =
      "train.evaluation.every and every_minutes are 0, so that nothing is evaluated before the "
      "last step";
  constexpr const char* kRemedy =
      "set train.evaluation.every (steps) or train.evaluation.every_minutes";
  if (!c.train.early_stopping.metric.empty())
    r.error("train.early_stopping.metric",
            cat("train.early_stopping: can never stop the run: ", kNone), kRemedy);
  if (!c.checkpoint.keep_best.metric.empty())
    r.notice("checkpoint.keep_best.metric",
             cat("checkpoint.keep_best: the best checkpoint is always the last one: ", kNone),
             kRemedy);
}

}  // namespace

void resolve_best_mode(ResolveState& r) {
  if (!r.is_undecided("checkpoint.keep_best.mode")) return;
  KeepBestConfig& best = r.config.checkpoint.keep_best;
  const auto metric = find_evaluation_metric(r.config.data, best.metric);
  best.mode = metric && larger_is_better(*metric) ? BestMode::kMax : BestMode::kMin;
}

void check_evaluation(ResolveState& r) {
  const Config& c = r.config;
  check_set_names(r);
  check_metric(r, "checkpoint.keep_best.metric", c.checkpoint.keep_best.metric);
  check_metric(r, "train.early_stopping.metric", c.train.early_stopping.metric);
  check_interval(r);
  if (c.train.generate.prompt_tokens > 0 && c.data.validation.empty())
    r.notice(
        "train.generate.prompt_tokens",
        "train.generate has no effect: it continues documents of data.validation, which is not "
        "set",
        "set data.validation");
  if (c.model_export.which == ExportedStep::kBest && c.checkpoint.keep_best.metric.empty())
    r.error("export.which", "export.which is best, but checkpoint.keep_best is not set",
            "add checkpoint: {keep_best: {metric: validation.loss}}");
}

}  // namespace ftrun

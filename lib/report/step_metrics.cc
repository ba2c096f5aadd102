#include "report/step_metrics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/file.h"
#include "report/plain_json.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

bool read(const Json& json, double& value) {
  if (json.is_number())
    value = json.get<double>();
  else if (json == "NaN")
    value = std::numeric_limits<double>::quiet_NaN();
  else if (json == "Infinity")
    value = std::numeric_limits<double>::infinity();
  else if (json == "-Infinity")
    value = -std::numeric_limits<double>::infinity();
  else
    return false;
  return true;
}

bool read(const Json& json, int64_t& value) {
  if (!json.is_number_integer()) return false;
  value = json.get<int64_t>();
  return true;
}

bool read(const Json& json, bool& value) {
  if (!json.is_boolean()) return false;
  value = json.get<bool>();
  return true;
}

bool read(const Json& json, std::optional<double>& value) {
  return read(json, value.emplace());
}

bool read(const Json& json, std::vector<NamedCount>& list) {
  if (!json.is_object()) return false;
  for (const auto& [name, value] : json.items())
    if (!read(value, list.emplace_back(NamedCount{name}).value)) return false;
  return true;
}

bool read(const Json& json, std::vector<NamedBytes>& list) {
  if (!json.is_object()) return false;
  for (const auto& [name, value] : json.items())
    if (!read(value, list.emplace_back(NamedBytes{name}).bytes)) return false;
  return true;
}

/// Reads a field; returns false if its type is wrong. A field may be absent, because lines of other
/// versions have other fields.
template <typename T>
bool read_field(const Json& object, const char* key, T& value) {
  const auto found = object.find(key);
  return found == object.end() || read(*found, value);
}

/// StepFigure is a number of a step: its field in metrics.jsonl, the tag of its chart ("" for
/// none), and its member of StepMetrics. Numbers without a value, and truth values that are false,
/// are left out.
struct StepFigure {
  const char* field;
  std::string_view tag;
  std::variant<int64_t StepMetrics::*, double StepMetrics::*, std::optional<double> StepMetrics::*,
               bool StepMetrics::*>
      member;
};

/// The numbers of a step, in the order of a line. scripts/follow_run.py sends the same tags to
/// trackers (tests/house/tags_test.py).
constexpr StepFigure kStepFigures[] = {
    {"samples", "train/samples", &StepMetrics::samples},
    {"loss", "", &StepMetrics::loss},  // tensorboard_scalars() leaves it out if no token counts
    {"grad_norm", "train/grad_norm", &StepMetrics::gradient_norm},
    {"lr", "train/learning_rate", &StepMetrics::learning_rate},
    {"tokens", "", &StepMetrics::tokens},
    {"tokens_per_second", "train/tokens_per_second", &StepMetrics::tokens_per_second},
    {"step_seconds", "time/step_seconds", &StepMetrics::step_seconds},
    {"data_wait_seconds", "time/data_wait_seconds", &StepMetrics::data_wait_seconds},
    {"exposed_communication_seconds", "time/exposed_communication_seconds",
     &StepMetrics::exposed_communication_seconds},
    {"loss_scale", "train/loss_scale", &StepMetrics::loss_scale},
    {"skipped", "train/skipped", &StepMetrics::skipped},
};

void add_field(Json& line, const char* field, int64_t value) {
  line[field] = value;
}
void add_field(Json& line, const char* field, double value) {
  line[field] = json_of_number(value);
}
void add_field(Json& line, const char* field, const std::optional<double>& value) {
  if (value) line[field] = json_of_number(*value);
}
void add_field(Json& line, const char* field, bool value) {
  if (value) line[field] = true;
}

std::optional<double> charted(int64_t value) {
  return static_cast<double>(value);
}
std::optional<double> charted(double value) {
  return value;
}
std::optional<double> charted(const std::optional<double>& value) {
  return value;
}
std::optional<double> charted(bool value) {
  return value ? std::optional(1.0) : std::nullopt;
}

void add_step_figures(Json& line, const StepMetrics& m) {
  for (const StepFigure& figure : kStepFigures)
    std::visit([&](auto member) { add_field(line, figure.field, m.*member); }, figure.member);
}

bool read_step_figures(const Json& line, StepMetrics& m) {
  return std::all_of(
      std::begin(kStepFigures), std::end(kStepFigures), [&](const StepFigure& figure) {
        return std::visit([&](auto member) { return read_field(line, figure.field, m.*member); },
                          figure.member);
      });
}

bool read_evaluation(const Json& line, StepMetrics& m) {
  EvaluationResult& evaluation = m.evaluations.emplace_back();
  if (!line.at("evaluation").is_string()) return false;
  evaluation.set = line.at("evaluation").get<std::string>();
  return read_field(line, "step", m.step) && line.contains("loss") &&
         read_field(line, "loss", evaluation.loss) &&
         read_field(line, "accuracy", evaluation.accuracy) &&
         read_field(line, "tokens", evaluation.tokens) &&
         read_field(line, "seconds", evaluation.seconds);
}

std::string text_of(const Json& line) {
  // Names of data sets may contain bytes that are not UTF-8. They are replaced, because they must
  // not make the run fail.
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool read_all(const Json& line, StepMetrics& m) {
  return read_field(line, "step", m.step) && read_step_figures(line, m) &&
         read_field(line, "counters", m.counters) && read_field(line, "memory", m.memory);
}

}  // namespace

double EvaluationResult::perplexity() const {
  return std::exp(loss);
}

/// The loss is NaN if no token counts, so a finite loss is a value whatever the count of tokens.
bool EvaluationResult::has_value() const {
  return tokens > 0 || std::isfinite(loss);
}

bool EvaluationResult::is_nonfinite() const {
  return tokens > 0 && !std::isfinite(loss);
}

bool is_nonfinite(const std::vector<EvaluationResult>& results) {
  return std::any_of(results.begin(), results.end(),
                     [](const EvaluationResult& result) { return result.is_nonfinite(); });
}

std::string metrics_line(const StepMetrics& m) {
  Json line;
  line["step"] = m.step;
  if (m.trained) add_step_figures(line, m);
  for (const NamedCount& counter : m.counters) line["counters"][counter.name] = counter.value;
  for (const NamedBytes& part : m.memory) line["memory"][part.name] = part.bytes;
  return text_of(line);
}

std::string evaluation_line(int64_t step, const EvaluationResult& evaluation) {
  Json line{
      {"step", step}, {"evaluation", evaluation.set}, {"loss", json_of_number(evaluation.loss)}};
  line["perplexity"] = json_of_number(evaluation.perplexity());
  if (evaluation.accuracy) line["accuracy"] = json_of_number(*evaluation.accuracy);
  line["tokens"] = evaluation.tokens;
  line["seconds"] = json_of_number(evaluation.seconds);
  return text_of(line);
}

std::string metrics_lines(const StepMetrics& m) {
  std::string lines = m.trained ? metrics_line(m) + "\n" : "";
  for (const EvaluationResult& evaluation : m.evaluations)
    lines += evaluation_line(m.step, evaluation) + "\n";
  return lines;
}

std::optional<StepMetrics> parse_metrics_line(std::string_view text) {
  const Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object() || !line.contains("step")) return std::nullopt;
  StepMetrics metrics;
  if (line.contains("evaluation")) {
    metrics.trained = false;
    return read_evaluation(line, metrics) ? std::optional(metrics) : std::nullopt;
  }
  if (!read_all(line, metrics)) return std::nullopt;
  metrics.trained = line.contains("loss");
  return metrics;
}

std::vector<StepMetrics> read_metrics(const std::string& path, int64_t* unreadable) {
  const std::string text = read_file(path, INT64_MAX);
  std::vector<StepMetrics> steps;
  const auto add = [&](StepMetrics&& metrics) {
    if (metrics.trained || steps.empty() || steps.back().step != metrics.step)
      return steps.push_back(std::move(metrics));
    for (EvaluationResult& evaluation : metrics.evaluations)
      steps.back().evaluations.push_back(std::move(evaluation));
  };
  for (std::string_view remaining = text; !remaining.empty();) {
    const std::string_view line = remaining.substr(0, remaining.find('\n'));
    if (auto metrics = parse_metrics_line(line))
      add(std::move(*metrics));
    else if (unreadable != nullptr)
      ++*unreadable;
    remaining.remove_prefix(std::min(remaining.size(), line.size() + 1));
  }
  return steps;
}

std::vector<Scalar> tensorboard_scalars(const StepMetrics& m) {
  std::vector<Scalar> scalars;
  if (m.trained) {
    if (m.tokens > 0) scalars.push_back({"train/loss", m.loss});
    for (const StepFigure& figure : kStepFigures) {
      if (figure.tag.empty()) continue;
      const std::optional<double> value =
          std::visit([&](auto member) { return charted(m.*member); }, figure.member);
      if (value) scalars.push_back({std::string(figure.tag), *value});
    }
  }
  for (const EvaluationResult& evaluation : m.evaluations) {
    if (!evaluation.has_value()) continue;
    scalars.push_back({evaluation.set + "/loss", evaluation.loss});
    scalars.push_back({evaluation.set + "/perplexity", evaluation.perplexity()});
    if (evaluation.accuracy)
      scalars.push_back({evaluation.set + "/accuracy", *evaluation.accuracy});
  }
  for (const NamedCount& counter : m.counters)
    scalars.push_back({"counters/" + counter.name, static_cast<double>(counter.value)});
  for (const NamedBytes& part : m.memory)
    scalars.push_back({"memory/" + part.name, static_cast<double>(part.bytes)});
  return scalars;
}

}  // namespace ftrun

#include "report/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/step_parts.h"
#include "base/text.h"
#include "report/effective_time.h"
#include "report/html_page.h"
#include "report/json_depth.h"
#include "report/plain_json.h"
#include "report/report_page.h"
#include "report/run_folder.h"
#include "report/run_manifest.h"
#include "report/step_metrics.h"
#include "report/text_samples.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

/// The maximum number of points of a chart. Charts have no more pixels than that, so if there are
/// more points, neighbors are averaged.
constexpr size_t kMaxPoints = 4000;
/// The maximum number of text samples, warnings, and bytes of the config that a page shows for a
/// run.
constexpr size_t kMaxTexts = 2000, kMaxWarnings = 200, kMaxConfigBytes = 256 << 10;

/// A value for each step; absent for steps without the value.
using Figures = std::vector<std::optional<double>>;

/// Replaces each group of `group` neighbors by its mean. If a value is not finite, neither is the
/// mean of its group.
Json downsample(const Figures& column, size_t group) {
  Json out = Json::array();
  for (size_t begin = 0; begin < column.size(); begin += group) {
    double sum = 0;
    int64_t count = 0;
    for (size_t i = begin; i < std::min(begin + group, column.size()); ++i)
      if (column[i]) {
        sum += *column[i];
        ++count;
      }
    out.push_back(count == 0 ? Json(nullptr) : json_of_number(sum / static_cast<double>(count)));
  }
  return out;
}

struct FigureColumn {
  const char* name;
  std::optional<double> (*value_in)(const StepMetrics& metrics);
};

constexpr std::array<FigureColumn, 8> kFigures{{
    {"loss",
     [](const StepMetrics& m) { return m.tokens > 0 ? std::optional(m.loss) : std::nullopt; }},
    {"lr", [](const StepMetrics& m) { return std::optional(m.learning_rate); }},
    {"grad_norm", [](const StepMetrics& m) { return std::optional(m.gradient_norm); }},
    {"tokens_per_second", [](const StepMetrics& m) { return std::optional(m.tokens_per_second); }},
    {"step_seconds", [](const StepMetrics& m) { return std::optional(m.step_seconds); }},
    {"data_wait_seconds", [](const StepMetrics& m) { return std::optional(m.data_wait_seconds); }},
    {"exposed_communication_seconds",
     [](const StepMetrics& m) { return m.exposed_communication_seconds; }},
    {"loss_scale", [](const StepMetrics& m) { return m.loss_scale; }},
}};

/// Steps lists the trained steps of a run, with the number of tokens trained after each step.
struct Steps {
  std::vector<const StepMetrics*> trained;
  std::map<int64_t, double> tokens_after{{0, 0}};
};

Steps trained_steps(const std::vector<StepMetrics>& metrics) {
  Steps steps;
  double tokens = 0;
  for (const StepMetrics& m : metrics) {
    if (!m.trained) continue;
    tokens += static_cast<double>(m.tokens);
    steps.trained.push_back(&m);
    steps.tokens_after[m.step] = tokens;
  }
  return steps;
}

Json step_columns(const Steps& steps, size_t group) {
  Json json;
  Figures step, tokens;
  for (const StepMetrics* m : steps.trained) {
    step.push_back(static_cast<double>(m->step));
    tokens.push_back(steps.tokens_after.at(m->step));
  }
  json["step"] = downsample(step, group);
  json["tokens"] = downsample(tokens, group);
  for (const FigureColumn& figure : kFigures) {
    Figures column;
    for (const StepMetrics* m : steps.trained) column.push_back(figure.value_in(*m));
    if (std::any_of(column.begin(), column.end(),
                    [](const auto& value) { return value.has_value(); }))
      json[figure.name] = downsample(column, group);
  }
  return json;
}

Json memory_columns(const Steps& steps, size_t group) {
  std::map<std::string, Figures> columns;
  for (size_t i = 0; i < steps.trained.size(); ++i)
    for (const NamedBytes& part : steps.trained[i]->memory) {
      Figures& column = columns[part.name];
      column.resize(steps.trained.size());
      column[i] = static_cast<double>(part.bytes);
    }
  Json json = Json::object();
  for (const auto& [name, column] : columns) json[name] = downsample(column, group);
  return json;
}

Json evaluations_of(const std::vector<StepMetrics>& metrics, const Steps& steps) {
  Json sets = Json::array();
  std::vector<std::string> names;
  for (const StepMetrics& m : metrics)
    for (const EvaluationResult& evaluation : m.evaluations) {
      const auto at = std::find(names.begin(), names.end(), evaluation.set) - names.begin();
      if (static_cast<size_t>(at) == names.size()) {
        names.push_back(evaluation.set);
        Json set{{"name", evaluation.set}};
        for (const char* key : {"step", "tokens", "loss", "perplexity", "accuracy"})
          set[key] = Json::array();
        sets.push_back(std::move(set));
      }
      Json& set = sets[static_cast<size_t>(at)];
      const auto tokens = steps.tokens_after.find(m.step);
      set["step"].push_back(m.step);
      set["tokens"].push_back(tokens == steps.tokens_after.end() ? Json(nullptr)
                                                                 : Json(tokens->second));
      const bool known = evaluation.has_value();
      set["loss"].push_back(known ? json_of_number(evaluation.loss) : Json(nullptr));
      set["perplexity"].push_back(known ? json_of_number(evaluation.perplexity()) : Json(nullptr));
      set["accuracy"].push_back(evaluation.accuracy ? json_of_number(*evaluation.accuracy)
                                                    : Json(nullptr));
    }
  return sets;
}

/// Reads run.json. Returns an empty object if the file is missing or unreadable (the run was
/// killed, or the file was edited).
Json read_loose_json(const std::string& path) {
  if (!posix_files().exists(path)) return Json::object();
  const std::string text = read_file(path, int64_t{16} << 20);
  if (nests_deeper_than(text, kMaxJsonDepth)) return Json::object();
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

std::string text_at(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

/// Returns the settings of the config by dotted name.
Json config_of(const Json& manifest) {
  Json flat = Json::object();
  if (manifest.contains("config") && manifest["config"].is_object() && !manifest["config"].empty())
    flatten(manifest["config"], "",
            [&](const std::string& name, const std::string& text) { flat[name] = text; });
  return flat;
}

/// Describes the best evaluation that run.json names; "" if it names none.
std::string best_text(const Json& best) {
  if (!best.contains("step") || !best["step"].is_number() || !best.contains("value") ||
      !best["value"].is_number())
    return "";
  return cat(text_at(best, "metric"), " ", best["value"].dump(), " after step ",
             best["step"].dump());
}

/// Lists facts about a run, and how it ended, one line each.
Json facts_of(const Json& manifest, const std::vector<StepMetrics>& metrics,
              const RunPaths& paths) {
  Json facts = Json::array();
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) facts.push_back(cat(name, ": ", value));
  };
  const Json none = Json::object();
  const auto part = [&](const char* key) {
    return manifest.contains(key) && manifest[key].is_object() ? manifest[key] : none;
  };
  add("model", text_at(part("model"), "path"));
  add("started", text_at(manifest, "started"));
  add("from", text_at(manifest, "start"));
  const std::string ended = text_at(manifest, "ended");
  add("ended", ended.empty() ? "not yet, or it was killed"
                             : cat(ended, ", ", text_at(manifest, "exit_reason")));
  if (!metrics.empty()) add("last step", std::to_string(metrics.back().step));
  add("best", best_text(part("best")));
  if (manifest.contains("restarts") && manifest["restarts"].is_array() &&
      !manifest["restarts"].empty())
    add("restarts", std::to_string(manifest["restarts"].size()));
  if (posix_files().exists(paths.trace()))
    add("traced steps", cat(fs::path(paths.trace()).filename().string(),
                            " in the run's folder, for ui.perfetto.dev"));
  add("on", cat(text_at(part("machine"), "hostname"), ", ", text_at(part("machine"), "cpu_model")));
  add("ftrun", text_at(part("build"), "version"));
  return facts;
}

/// Lists the predicted and the measured seconds of each part of a step, from "time" in run.json.
/// Empty if the time was not predicted or not measured.
Json times_of(const Json& manifest) {
  Json parts = Json::array();
  if (!manifest.contains("time") || !manifest["time"].is_object()) return parts;
  const Json& time = manifest["time"];
  const auto seconds = [&](const char* side, const char* key) -> std::optional<double> {
    if (!time.contains(side) || !time[side].is_object() || !time[side].contains(key) ||
        !time[side][key].is_number())
      return std::nullopt;
    return time[side][key].get<double>() / 1e6;
  };
  const auto add = [&](const StepPartName& part) {
    const std::optional<double> predicted = seconds("predicted", part.key),
                                measured = seconds("measured", part.key);
    if (predicted && measured)
      parts.push_back({{"part", part.name}, {"predicted", *predicted}, {"measured", *measured}});
  };
  add(step_parts::kStep);
  std::for_each(step_parts::kMeasured.begin(), step_parts::kMeasured.end(), add);
  if (!parts.empty() && parts[0]["part"] != step_parts::kStep.name) return Json::array();
  return parts;
}

/// Returns the shares of the machine's time that other load took, in whole percent; absent if not
/// known.
Json load_of(const Json& manifest) {
  Json load = Json::object();
  if (!manifest.contains("time") || !manifest["time"].is_object()) return load;
  const Json& time = manifest["time"];
  if (!time.contains("load") || !time["load"].is_object()) return load;
  for (const auto& [key, name] : {std::pair{"others_per_million", "other programs"},
                                  std::pair{"stolen_per_million", "other machines"}})
    if (time["load"].contains(key) && time["load"][key].is_number())
      load[name] = std::llround(time["load"][key].get<double>() / 1e4);
  return load;
}

/// Reads the warnings and errors in rank 0's log: "2026-11-23T01:02:03.456 W text".
Json warnings_of(const std::string& log, size_t& left_out) {
  Json warnings = Json::array();
  std::ifstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != line.npos && space + 2 < line.size() && line[space + 2] == ' ' &&
        std::string_view("WEC").find(line[space + 1]) != std::string_view::npos)
      warnings.size() < kMaxWarnings ? warnings.push_back(line) : static_cast<void>(++left_out);
  }
  return warnings;
}

Json texts_of(const std::string& path, int64_t& unreadable, size_t& left_out) {
  Json texts = Json::array();
  if (!posix_files().exists(path)) return texts;
  for (const RecordedTextSample& sample : read_text_samples(path, &unreadable))
    if (texts.size() < kMaxTexts)
      texts.push_back(
          {{"step", sample.step}, {"prompt", sample.prompt}, {"answer", sample.answer}});
    else
      ++left_out;
  return texts;
}

Json run_json(const std::string& folder) {
  const RunPaths paths(folder);
  if (!posix_files().exists(paths.metrics()) && !posix_files().exists(paths.manifest()))
    throw Error(ExitCode::kBadInput,
                cat(folder, ": holds no run: neither metrics.jsonl nor run.json"),
                "give the output_dir of a run");
  int64_t unreadable = 0;
  std::vector<StepMetrics> metrics;
  if (posix_files().exists(paths.metrics())) metrics = read_metrics(paths.metrics(), &unreadable);
  const Steps steps = trained_steps(metrics);
  const size_t group = (steps.trained.size() + kMaxPoints - 1) / kMaxPoints;
  const Json manifest = read_loose_json(paths.manifest());
  Json run;
  run["name"] = fs::path(folder).filename().empty()
                    ? fs::path(folder).parent_path().filename().string()
                    : fs::path(folder).filename().string();
  run["facts"] = facts_of(manifest, metrics, paths);
  run["times"] = times_of(manifest);
  run["load"] = load_of(manifest);
  run["mean_of"] = std::max<size_t>(group, 1);
  run["steps"] = step_columns(steps, std::max<size_t>(group, 1));
  run["memory"] = memory_columns(steps, std::max<size_t>(group, 1));
  run["evaluations"] = evaluations_of(metrics, steps);
  size_t texts_left_out = 0, warnings_left_out = 0;
  run["texts"] = texts_of(paths.samples(), unreadable, texts_left_out);
  run["texts_left_out"] = texts_left_out;
  run["warnings"] = warnings_of(paths.log(0), warnings_left_out);
  run["warnings_left_out"] = warnings_left_out;
  run["config"] = config_of(manifest);
  if (posix_files().exists(paths.config()))
    run["config_yaml"] = read_file(paths.config()).substr(0, kMaxConfigBytes);
  run["unreadable"] = unreadable;
  return run;
}

PageSources report_page_sources() {
  return {kReportPage, "", kReportScript};
}

}  // namespace

std::string run_report(const std::vector<std::string>& run_folders) {
  Json data{{"made", cat("made ", utc_now())}, {"runs", Json::array()}};
  for (const std::string& folder : run_folders) data["runs"].push_back(run_json(folder));
  return fill_page(report_page_sources(), data);
}

void write_run_report(const std::string& path, const std::vector<std::string>& run_folders) {
  refuse_foreign_page(path, report_page_sources(), "a report of ftrun's",
                      "for the report (--out FILE.html)");
  const std::string page = run_report(run_folders);
  write_file_atomic(posix_files(), path, page);
}

}  // namespace ftrun

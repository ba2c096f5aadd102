#include "search_text.h"

#include <algorithm>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"
#include "search/node_ranks.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

/// The number of layouts that are listed.
constexpr size_t kListedLayouts = 5;
/// Waits below this share of a step are not printed.
constexpr double kMinReportedWait = 0.02;

/// Returns the first two lines of an error text: what is refused, and why.
std::string first_two_lines(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  lines.resize(std::min<size_t>(lines.size(), 2));
  for (std::string& line : lines) line.erase(0, line.find_first_not_of(' '));
  return join(lines, "; ");
}

/// Returns a text about the longest of the waits in a step: "; waits for collectives take 41 %".
std::string waits_text(const StepTime& time) {
  const std::pair<const char*, double> waits[] = {
      {"collectives", time.idle_by_lane.collective_seconds()},
      {"other stages", time.idle_by_lane.stage_seconds},
      {"copies", time.idle_by_lane.copy_seconds},
      {"the disk", time.idle_by_lane.disk_seconds}};
  const auto* longest =
      std::max_element(std::begin(waits), std::end(waits),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (longest->second < kMinReportedWait * time.seconds) return "";
  return cat("; waits for ", longest->first, " take ",
             percent_text(longest->second / time.seconds, 0));
}

/// Returns a text about the memory that is too small: "needs 95.10 GiB of 78.70 GiB". `at_least`
/// means that only a lower bound on the need is known.
std::string missing_memory_text(const SearchTask& task, const MemoryNeed& memory, int64_t ranks,
                                bool at_least) {
  const int64_t budget = device_memory_budget(task, ranks);
  const char* needs = at_least ? "needs at least " : "needs ";
  if (budget > 0 && memory.device_bytes > budget)
    return cat(needs, human_bytes(memory.device_bytes), " of ", human_bytes(budget), " per rank");
  return cat(needs, human_bytes(memory.host_bytes), " of ",
             human_bytes(host_memory_budget(task, ranks)), " of main memory per rank");
}

Json memory_need_json(const MemoryNeed& memory) {
  return {{"device", memory.device_bytes}, {"host", memory.host_bytes}};
}

Json keys_json(const Layout& layout) {
  Json keys = Json::object();
  for (const auto& [path, value] : layout_keys(layout)) {
    if (const auto* number = std::get_if<int64_t>(&value))
      keys[path] = *number;
    else
      keys[path] = std::get<std::string>(value);
  }
  return keys;
}

}  // namespace

std::string machine_text(const Machine& machine, int64_t nodes, std::string_view suffix) {
  return cat(nodes == 1 ? "" : cat(nodes, " nodes of "),
             count_text(machine.devices, machine.has_gpus ? "GPU" : "core"), " (", machine.name,
             suffix, ")");
}

std::string rank_memory_text(const MemoryNeed& memory) {
  return cat(
      human_bytes(memory.device_bytes),
      memory.host_bytes > 0 ? cat(" and ", human_bytes(memory.host_bytes), " of main memory") : "");
}

std::string search_counts_text(const SearchTask& task, const SearchResult& result) {
  const SearchCounts& counts = result.counts;
  std::string text =
      device_memory_budget(task, 1) > 0
          ? ""
          : "search: the memory of the machine is unknown: all layouts count as fitting\n";
  text +=
      cat("search: ", count_text(counts.checked, "layout"), " on ",
          machine_text(task.machine, task.nodes), ", ", task.batch,
          " sequences per step: ", counts.allowed, " allowed, ", counts.too_large,
          " estimated to need too much memory, ", counts.planned, " fully planned",
          counts.stopped > 0 ? cat(", ", counts.stopped, " stopped for lack of time") : "", "\n");
  if (result.ranking.empty()) return text;
  const double best = result.ranking.front().time->seconds;
  if (result.is_proved) return text + "proved: no other layout takes less\n";
  if (counts.untimed > 0)
    text += cat("not proved: ", count_text(counts.untimed, "layout"),
                " that fit could not be timed: ", first_line(result.untimed_reason), "\n");
  if (result.min_other_seconds >= best && counts.checked == counts.all) return text;
  text +=
      cat("not proved: the time limit was reached; no layout with a known bound is faster by more "
          "than ",
          percent_text((best - result.min_other_seconds) / best, 1));
  if (counts.checked < counts.all)
    text += cat("; ", counts.all - counts.checked, " were not checked");
  return text + " (--seconds gives more time)\n";
}

std::string why_not_text(const SearchTask& task, const SearchResult& result,
                         const CommonSettingComparison& comparison) {
  if (comparison.is_chosen) return "chosen";
  if (!comparison.refusal.empty()) return cat("refused: ", first_two_lines(comparison.refusal));
  if (!comparison.best && comparison.bound)
    return comparison.may_fit
               ? cat("not planned: the time limit was reached; takes at least ",
                     seconds_text(comparison.bound->seconds))
               : missing_memory_text(task, comparison.bound->memory, comparison.ranks, true);
  const PlannedLayout& best = *comparison.best;
  if (!best.fits && best.failure.empty())
    return missing_memory_text(task, best.memory, ranks_per_node(best.layout, task.nodes), false);
  if (!best.time) return cat("not predicted: ", first_line(best.failure));
  const double ours = result.ranking.front().time->seconds, theirs = best.time->seconds;
  return cat(seconds_text(theirs), ", ",
             theirs == ours ? "as fast" : cat(percent_text(theirs / ours - 1, 1), " slower"), ", ",
             rank_memory_text(best.memory), waits_text(*best.time));
}

std::string search_text(const SearchTask& task, const SearchResult& result) {
  std::string text = search_counts_text(task, result);
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < std::min(kListedLayouts, result.ranking.size()); ++i) {
    const PlannedLayout& planned = result.ranking[i];
    rows.push_back({cat(i + 1), layout_text(planned.layout), seconds_text(planned.time->seconds),
                    rank_memory_text(planned.memory)});
  }
  text += cat("\n", format_table({"", "layout", "step", "memory of a rank"}, rows));
  rows.clear();
  for (const CommonSettingComparison& comparison : result.common_settings)
    rows.push_back({comparison.setting, why_not_text(task, result, comparison)});
  if (!rows.empty()) text += cat("\n", format_table({"choice", "why not"}, rows));
  return text;
}

Json search_json(const SearchTask& task, const SearchResult& result) {
  const SearchCounts& counts = result.counts;
  Json layouts = Json::array(), choices = Json::array();
  for (size_t i = 0; i < std::min(kListedLayouts, result.ranking.size()); ++i) {
    const PlannedLayout& planned = result.ranking[i];
    layouts.push_back({{"layout", layout_text(planned.layout)},
                       {"keys", keys_json(planned.layout)},
                       {"seconds", planned.time->seconds},
                       {"memory", memory_need_json(planned.memory)}});
  }
  for (const CommonSettingComparison& comparison : result.common_settings) {
    Json choice{{"choice", comparison.setting}, {"reason", why_not_text(task, result, comparison)}};
    if (comparison.best && comparison.best->fits && comparison.best->time) {
      choice["seconds"] = comparison.best->time->seconds;
      choice["memory"] = memory_need_json(comparison.best->memory);
    }
    if (comparison.bound)
      choice["at_least"] = {{"seconds", comparison.bound->seconds},
                            {"memory", memory_need_json(comparison.bound->memory)}};
    choices.push_back(choice);
  }
  // Layouts that were not checked, or could not be timed, might take any time.
  const bool is_bound = counts.checked == counts.all && counts.untimed == 0;
  return {{"machine", task.machine.name},
          {"nodes", task.nodes},
          {"batch", task.batch},
          {"counts",
           {{"all", counts.all},
            {"tried", counts.checked},
            {"refused", counts.refused},
            {"legal", counts.allowed},
            {"asked", counts.resolved_layouts},
            {"too_large", counts.too_large},
            {"planned", counts.planned},
            {"given_up", counts.stopped},
            {"pruned", counts.pruned}}},
          {"proved", result.is_proved},
          {"least_seconds", is_bound ? result.min_other_seconds : 0.0},
          {"layouts", layouts},
          {"why_not", choices}};
}

}  // namespace ftrun

#include "plan_search.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/new_file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/write.h"
#include "json_output.h"
#include "new_file_checks.h"
#include "plan_page.h"
#include "program/step_plan.h"
#include "search/enumerate.h"
#include "search/node_ranks.h"
#include "search_text.h"
#include "sim/rank_class_plans.h"
#include "sim/step_time.h"

namespace ftrun {
namespace {

/// Sets the machine's kind of device if the config names none.
ConfigSource with_device_of(ConfigSource source, const Machine& machine) {
  if (!load_config(source).written.origins.is_written("device"))
    source.overrides.push_back(machine.has_gpus ? "device=cuda" : "device=cpu");
  return source;
}

/// Returns the command-line options that make another command plan for the same machine.
std::string search_options_text(const SearchOptions& options) {
  std::string text = cat(" --machine ", shell_word(options.time.machine));
  if (!options.time.stack.empty()) text += cat(" --stack ", shell_word(options.time.stack));
  if (options.nodes > 1) text += cat(" --nodes ", options.nodes);
  if (options.device_memory_bytes > 0)
    text += cat(" --device-memory ", options.device_memory_bytes);
  if (options.host_memory_bytes > 0) text += cat(" --host-memory ", options.host_memory_bytes);
  for (const std::string& slow : options.time.slow) text += cat(" --slow ", shell_word(slow));
  if (!options.time.network.empty()) text += cat(" --network ", shell_word(options.time.network));
  return text;
}

/// Returns a comment for each key of a layout that says what the key does.
std::map<std::string, std::string> layout_comments(const Layout& layout) {
  return {
      {"parallel.data", "ranks that read different sequences"},
      {"parallel.tensor", "ranks that share each matrix"},
      {"parallel.pipeline", "stages of layers"},
      {"parallel.data_replicate", "copies of the state"},
      {"train_batch_size", "sequences of a step, as before the search"},
      {"train_micro_batch_size_per_gpu", "sequences that a rank computes at once"},
      {"gradient_accumulation_steps", "micro-batches of a rank in a step"},
      {"zero_optimization.stage",
       layout.zero == 0   ? "nothing is sharded"
       : layout.zero == 1 ? "the optimizer's state is sharded"
       : layout.zero == 2 ? "the optimizer's state and gradients are sharded"
                          : "parameters, gradients and the optimizer's state are sharded"},
      {"recompute.policy", "activations that backward recomputes"},
  };
}

/// Returns a remedy if no layout fits.
std::string too_large_remedy(const SearchTask& task, const SearchResult& result) {
  if (result.fit_on_more_nodes) {
    // Numbers of nodes are tried by doubling, so those between the last two are not.
    const int64_t last_tried = result.sufficient_nodes / 2;
    std::string fewer;
    if (result.first_unchecked_nodes > 0)
      fewer = cat("; fewer may be enough: raise --seconds, because the time ended before ",
                  result.first_unchecked_nodes, " nodes were searched");
    else if (last_tried > task.nodes)
      fewer = cat("; ", last_tried, " are too few, and numbers between were not searched");
    return cat("use --nodes ", result.sufficient_nodes, " (",
               result.sufficient_nodes * task.machine.devices,
               " devices: ", layout_text(result.fit_on_more_nodes->layout), ", ",
               rank_memory_text(result.fit_on_more_nodes->memory), " per rank)", fewer,
               "; or train an adapter "
               "(adapter: {type: lora}), on a quantized base (quantization: {type: nf4})");
  }
  const std::string more = result.first_unchecked_nodes > 0
                               ? cat("raise --seconds: the time ended before ",
                                     result.first_unchecked_nodes, " nodes were searched; or ")
                               : "";
  return cat(more,
             "train an adapter (adapter: {type: lora}), on a quantized base (quantization: {type: "
             "nf4}), shorter sequences, or a smaller model");
}

/// Returns what a search had no time for: "; 2 plans stopped for lack of time; 8163 layouts not
/// checked"; "" for nothing.
std::string unfinished_text(const SearchCounts& counts) {
  std::string text;
  if (counts.stopped > 0)
    text += cat("; ", count_text(counts.stopped, "plan"), " stopped for lack of time");
  if (counts.checked < counts.all)
    text += cat("; ", count_text(counts.all - counts.checked, "layout"), " not checked");
  return text;
}

}  // namespace

SearchTask make_search_task(const SearchOptions& options, const Machine& machine) {
  SearchTask task;
  task.machine = machine;
  task.nodes = options.nodes;
  task.device_memory = options.device_memory_bytes;
  task.host_memory = options.host_memory_bytes;
  ConfigSource source = with_device_of(read_source_files(options.source), machine);
  source.plans_only = true;
  const LoadedConfig loaded = load_source(source, LaunchEnvironment{});
  task.batch = loaded.config.train_batch_size;
  task.context = loaded.context;
  task.model = *loaded.model;
  for (std::string& key : layout_overrides(task.batch)) source.overrides.push_back(std::move(key));
  task.written = read_unresolved(source);
  return task;
}

void check_found_layout(const SearchTask& task, const SearchResult& result) {
  if (!result.ranking.empty()) return;
  const std::string machine = machine_text(task.machine, task.nodes);
  if (result.counts.allowed == 0)
    throw Error(ExitCode::kUsage,
                cat("none of the ", result.counts.checked, " layouts on ", machine,
                    " can run this config: ",
                    result.refusal.empty() ? cat("a global batch of ", task.batch,
                                                 " sequences cannot be divided among the ranks")
                                           : result.refusal),
                "change the refused keys, or plan for another number of devices");
  if (!result.least_memory && result.untimed_reason.empty())
    throw Error(
        ExitCode::kUsage,
        cat("no layout on ", machine, " could be planned in the time of the search: of ",
            result.counts.allowed, " allowed layouts, ",
            result.counts.allowed - result.counts.too_large,
            " are estimated to fit, and none was fully planned", unfinished_text(result.counts)),
        cat("raise --seconds: about ", seconds_text(result.needed_seconds),
            " are needed for one of them"));
  if (!result.least_memory)
    throw Error(ExitCode::kUsage,
                cat("no layout on ", machine, " was timed: ", result.untimed_reason),
                "correct the machine file");
  const PlannedLayout& smallest = *result.least_memory;
  const int64_t budget = device_memory_budget(task, ranks_per_node(smallest.layout, task.nodes));
  std::string text =
      cat("none of ",
          result.is_proved ? cat(result.counts.allowed, " layouts")
                           : cat("the ", result.counts.planned, " layouts planned so far (of ",
                                 result.counts.allowed, ")"),
          " fits on ", machine, ": the smallest layout needs ", rank_memory_text(smallest.memory),
          " per rank; a rank may use ", human_bytes(budget));
  if (smallest.memory.device_bytes > budget)
    text += cat(", so ", human_bytes(smallest.memory.device_bytes - budget), " are missing");
  const int64_t host = host_memory_budget(task, ranks_per_node(smallest.layout, task.nodes));
  if (host > 0 && smallest.memory.host_bytes > host)
    text += cat("; it may use ", human_bytes(host), " of main memory, so ",
                human_bytes(smallest.memory.host_bytes - host), " are missing");
  text += cat(" (", layout_text(smallest.layout), ")", unfinished_text(result.counts));
  throw Error(ExitCode::kEnvironment, text, too_large_remedy(task, result));
}

std::string config_with_layout(const SearchTask& task, const Layout& layout,
                               const std::vector<std::string>& reasons) {
  WrittenConfig written = task.written;
  write_layout(layout, written);
  std::string text;
  // A name with a line break must not end the comment.
  for (const std::string& line : reasons) text += cat("# ", to_one_line(line), "\n");
  return cat(text, "\n", written_yaml(written, layout_comments(layout)));
}

namespace {

/// Writes the HTML page of the best layout, with the reasons against other settings.
void write_page(const SearchOptions& options, const RequestedMachine& requested,
                const SearchTask& task, const SearchResult& result,
                const nlohmann::ordered_json& search) {
  const PlannedLayout& best = result.ranking.front();
  const Config config = std::get<Config>(resolve_layout(task, best.layout));
  const StepPlan own = plan_steps(config, task.model, 0);
  const RankClassPlans class_plans(config, task.model, 0, own);
  StepTimeline timeline;
  const StepTime time = predict_step(class_plans, task.machine,
                                     {task.nodes, config.threads, task.slow_ranks}, &timeline);
  PlanPage page =
      make_plan_page(config, class_plans, options.source, requested, task.nodes,
                     cat("time of a step: ", seconds_text(time.seconds), " (predicted)"));
  page.facts.push_back(cat("found: ", layout_text(best.layout)));
  const int64_t ranks = ranks_per_node(best.layout, task.nodes);
  page.device_memory_bytes = device_memory_budget(task, ranks);
  page.host_memory_bytes = host_memory_budget(task, ranks);
  page.search = search;
  page.search["lines"] = split(search_counts_text(task, result), '\n');
  write_plan_page(options.html, std::move(page), config, class_plans, timeline);
}

}  // namespace

int search_plan(const SearchOptions& options, const RequestedMachine& requested,
                JsonOutput& output) {
  if (!options.out.empty()) check_new_file("--out", options.out);
  SearchTask task = make_search_task(options, requested.machine);
  task.slow_ranks = requested.slow_ranks;
  if (!task.slow_ranks.empty() && !task.machine.has_gpus)
    throw Error(
        ExitCode::kUsage,
        "--slow: layouts on CPUs have different numbers of ranks, so the slow one is unknown",
        "plan one config with --slow, without --search");
  check_slow_ranks_exist(task.slow_ranks, task.nodes * task.machine.devices);
  const SearchResult result = search_layouts(task, {.seconds = options.seconds});
  check_found_layout(task, result);
  const PlannedLayout& best = result.ranking.front();
  if (!requested.what_if_text.empty()) std::cout << "what if " << requested.what_if_text << '\n';
  std::cout << terminal_text(search_text(task, result));
  nlohmann::ordered_json json = search_json(task, result);
  if (!options.out.empty()) {
    const std::string command =
        cat("ftrun plan --config ", shell_word(options.out), search_options_text(options));
    std::vector<std::string> reasons{
        cat("Found by ftrun plan --search for ", machine_text(task.machine, task.nodes), ": ",
            layout_text(best.layout),
            requested.what_if_text.empty() ? "." : cat(", if ", requested.what_if_text, ".")),
        cat("A step is predicted to take ", seconds_text(best.time->seconds), "; a rank needs ",
            rank_memory_text(best.memory), ". ",
            result.is_proved ? "No other layout takes less." : "Others may take less."),
        cat("The same figures: ", command)};
    for (const CommonSettingComparison& comparison : result.common_settings)
      reasons.push_back(
          cat("  ", comparison.setting, ": ", why_not_text(task, result, comparison)));
    write_new_file(options.out, config_with_layout(task, best.layout, reasons));
    json["config"] = options.out;
    std::cout << terminal_text(cat("\nwrote ", options.out, "; its figures: ", command)) << '\n';
  } else {
    std::cout << "\n--out FILE writes the first one as a config\n";
  }
  if (!options.html.empty()) write_page(options, requested, task, result, json);
  output.add("search", json);
  return 0;
}

}  // namespace ftrun

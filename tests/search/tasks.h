#pragma once

#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "config/load.h"
#include "machine/machine_file.h"
#include "program/models.h"
#include "search/enumerate.h"
#include "search/search_task.h"

namespace ftrun::testing {

/// Returns a random one of `choices`.
template <class T>
T one_of(std::mt19937_64& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

/// Draws a machine of `devices` GPUs or cores per node, with rates in random relations.
inline Machine random_machine(std::mt19937_64& random, int devices) {
  const bool gpus = random() % 3 > 0;
  std::string text =
      cat("machine: m\ndevice: ", gpus ? "gpu" : "cpu", "\ndevices: ", devices, "\nrates:\n");
  for (int ranks = 1; ranks <= (gpus ? 1 : devices); ranks *= 2)
    text += cat("  - ranks: ", ranks, "\n    memory: ", one_of<int>(random, {1, 10, 100}),
                " GB/s\n    products: {fp32: ", one_of<int>(random, {1, 20, 300}),
                " GFLOP/s, bf16: ", one_of<int>(random, {1, 50, 900}),
                " GFLOP/s}\n    otherwise: ", one_of<int>(random, {1, 3}),
                "\n    slowdown: {update: {1 us: 3, 10 us: 1.1, 1 ms: 2}}\n");
  text += cat("links:\n  node: {latency: 1 us, bandwidth: ", one_of<int>(random, {10, 1000}),
              " MB/s}\n  cluster: {latency: 3 us, bandwidth: ", one_of<int>(random, {5, 5000}),
              " MB/s}\n  host: {latency: 1 us, bandwidth: 50 MB/s}\nhost_memory: 100 MB/s\n");
  if (random() % 2 == 0)
    text +=
        "exchange:\n  all_reduce 2: {1 KB: 2 us, 1 MB: 300 us}\n"
        "  all_gather 2: {1 KB: 4 us, 64 KB: 9 us, 1 MB: 900 us}\n"
        "  reduce_scatter 2: {1 KB: 40 us, 1 MB: 100 us}\n";
  return parse_machine("m.yaml", text);
}

/// Draws a small model with random settings, on a random machine of at most `devices` devices per
/// node.
inline SearchTask random_task(std::mt19937_64& random, int devices, int64_t batch) {
  SearchTask task;
  task.machine = random_machine(random, devices);
  task.nodes = one_of<int64_t>(random, {1, 1, 2});
  task.batch = batch;
  task.model = small_config(one_of<int64_t>(random, {1, 2}), random() % 2 == 0);
  task.model.vocab_rows = one_of<int64_t>(random, {32, 512});
  task.model.hidden = one_of<int64_t>(random, {16, 64, 256});
  task.model.feed_forward = 2 * task.model.hidden;
  const bool adapts = random() % 4 == 0;
  std::vector<std::string> overrides = layout_overrides(batch);
  overrides.insert(overrides.end(),
                   {cat("device=", task.machine.has_gpus ? "cuda" : "cpu"), "train.steps=10",
                    "model.path=m", "data.sequence_length=16",
                    "zero_optimization.stage3_param_persistence_threshold=" +
                        one_of<std::string>(random, {"0", "300", "100000"}),
                    "optimizer.type=" + one_of<std::string>(random, {"AdamW", "SGD", "Adam"})});
  if (random() % 2 == 0) overrides.emplace_back("bf16.enabled=true");
  if (adapts) overrides.emplace_back("adapter={type: lora, r: 2}");
  LoadResult loaded = load_config_text("search.yaml", "", overrides);
  for (const Problem& problem : loaded.problems)
    if (problem.severity == Severity::kError) throw std::logic_error(to_text(problem));
  task.written = std::move(loaded.written);
  task.context.plans_only = true;
  return task;
}

/// Returns the layouts of a task that the program accepts.
inline std::vector<Layout> allowed_layouts(const SearchTask& task) {
  std::vector<Layout> allowed;
  for (const Layout& layout : list_layouts(task))
    if (std::holds_alternative<Config>(resolve_layout(task, layout))) allowed.push_back(layout);
  return allowed;
}

}  // namespace ftrun::testing

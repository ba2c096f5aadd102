#include "search/search.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "base/file.h"
#include "base/run_in_parallel.h"
#include "config/write.h"
#include "machine/machine_file.h"
#include "machine/software_stack.h"
#include "model/families.h"
#include "search/bound.h"
#include "search/layout_rules.h"
#include "search/plan_layout.h"
#include "search/tasks.h"
#include "source_paths.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

constexpr double kUnlimited = 1e6;

/// JudgedLayout is an allowed layout and the properties that its bound needs.
struct JudgedLayout {
  Layout layout;
  StateProperties properties;
};

/// Draws up to `count` allowed layouts of a task. The layout rules decide whether a layout is
/// allowed, because resolving a config for each layout takes longer than planning it fully.
std::vector<JudgedLayout> draw_allowed(const SearchTask& task, size_t count,
                                       std::mt19937_64& random) {
  std::vector<Layout> layouts = list_layouts(task);
  std::shuffle(layouts.begin(), layouts.end(), random);
  LayoutRules rules(task);
  std::vector<JudgedLayout> drawn;
  for (const Layout& layout : layouts) {
    if (drawn.size() == count) break;
    const LayoutRules::Judgement judgement = rules.judge(layout);
    if (judgement.refusal == nullptr) drawn.push_back({layout, *judgement.properties});
  }
  return drawn;
}

void write_setting(SearchTask& task, const std::string& path, FieldValue value) {
  task.written.write(Schema::get().at(path), std::move(value), {});
}

TEST_CASE("no bound on time or memory is above the exact value", "[long]") {
  constexpr size_t kOfTask = 40;
  const auto layouts = static_cast<size_t>(sweep_draws(2000));
  std::mt19937_64 random(sweep_seed(20261127));
  size_t compared = 0;
  double closest = 0;
  int hosted = 0, stacked = 0;
  while (compared < layouts) {
    SearchTask task = random_task(random, one_of<int>(random, {1, 2, 4}), 8);
    const bool has_stack = task.machine.has_gpus && random() % 3 == 0;
    if (has_stack)
      task.machine =
          apply_stack(task.machine, {.name = "s",
                                     .matmul_efficiency = 0.7,
                                     .attention_efficiency = 0.4,
                                     .memory_efficiency = one_of<double>(random, {0.3, 0.9}),
                                     .intra_node_efficiency = one_of<double>(random, {0.5, 2})});
    const std::vector<JudgedLayout> drawn = draw_allowed(task, kOfTask, random);
    std::vector<PlannedLayout> all(drawn.size());
    run_in_parallel(drawn.size(), [&](size_t i) { all[i] = plan_layout(task, drawn[i].layout); });
    BoundCalculator bounds(task);
    for (size_t i = 0; i < drawn.size(); ++i) {
      const Layout& layout = drawn[i].layout;
      const LayoutBound bound = bounds.compute_bound(layout, drawn[i].properties);
      const PlannedLayout& exact = all[i];
      INFO(layout_text(layout) << ", " << task.nodes << " nodes of " << machine_yaml(task.machine));
      CHECK(exact.failure == "");
      REQUIRE(exact.time.has_value());
      CHECK(bound.seconds <= exact.time->seconds);
      CHECK(bound.memory.device_bytes <= exact.memory.device_bytes);
      CHECK(bound.memory.host_bytes <= exact.memory.host_bytes);
      CHECK(bound.seconds > 0);
      if (layout.optimizer_offload == OffloadDevice::kNone) CHECK(bound.memory.device_bytes > 0);
      closest = std::max(closest, bound.seconds / exact.time->seconds);
      hosted += bound.memory.host_bytes > 0 ? 1 : 0;
      stacked += has_stack ? 1 : 0;
      ++compared;
    }
  }
  // Bounds far below all exact values would make this test meaningless.
  CHECK(closest > 0.9);
  CHECK(hosted > 0);
  CHECK(stacked > 0);
}

TEST_CASE(
    "the memory bound of micro-batches in flight is close to the exact value for several "
    "schedules") {
  std::mt19937_64 random(20261128);
  std::map<PipelineSchedule, double> closest;
  for (int t = 0; t < sweep_rounds(12); ++t) {
    SearchTask task = random_task(random, 4, 8);
    task.nodes = 1;
    task.model = small_config(8, true);
    task.model.hidden = 64;
    task.model.feed_forward = 256;
    LayoutRules rules(task);
    BoundCalculator bounds(task);
    std::map<PipelineSchedule, int> tries;
    std::vector<Layout> layouts = list_layouts(task);
    std::shuffle(layouts.begin(), layouts.end(), random);
    for (const Layout& layout : layouts) {
      if (layout.pipeline == 1 || layout.optimizer_offload != OffloadDevice::kNone ||
          layout.parameter_offload != OffloadDevice::kNone || tries[layout.schedule] > 0)
        continue;
      const LayoutRules::Judgement judgement = rules.judge(layout);
      if (judgement.refusal != nullptr) continue;
      ++tries[layout.schedule];
      const LayoutBound bound = bounds.compute_bound(layout, *judgement.properties);
      const PlannedLayout exact = plan_layout(task, layout, false);
      INFO(layout_text(layout));
      CHECK(bound.memory.device_bytes <= exact.memory.device_bytes);
      double& near = closest[layout.schedule];
      near = std::max(near, static_cast<double>(bound.memory.device_bytes) /
                                static_cast<double>(exact.memory.device_bytes));
    }
  }
  for (const PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe, PipelineSchedule::kInterleaved,
        PipelineSchedule::kZbH1, PipelineSchedule::kZbV}) {
    INFO(name_of(schedule));
    CHECK(closest[schedule] > 0.5);
  }
}

TEST_CASE("the layout rules accept exactly the layouts whose configs are valid") {
  std::mt19937_64 random(28);
  for (int t = 0; t < sweep_rounds(6); ++t) {
    SearchTask task = random_task(random, one_of<int>(random, {2, 4}), 8);
    if (t % 3 == 1) write_setting(task, "zero_optimization.zero_hpz_partition_size", int64_t{2});
    LayoutRules rules(task);
    int64_t allowed = 0;
    const std::vector<Layout> layouts = list_layouts(task);
    for (const Layout& layout : layouts) {
      const std::variant<Config, std::string> tried = resolve_layout(task, layout);
      const LayoutRules::Judgement judgement = rules.judge(layout);
      INFO(layout_text(layout));
      const Config* config = std::get_if<Config>(&tried);
      REQUIRE((judgement.refusal == nullptr) == (config != nullptr));
      if (config == nullptr) continue;
      ++allowed;
      REQUIRE(*judgement.properties == state_properties(*config));
    }
    CHECK(rules.resolved_layouts() < static_cast<int64_t>(layouts.size()));
    if (t % 3 != 1) CHECK(allowed > 0);
  }
}

TEST_CASE("the main memory of a machine with GPUs limits the layouts that keep state there") {
  std::mt19937_64 random(9);
  SearchTask task = random_task(random, 2, 4);
  while (!task.machine.has_gpus ||
         task.written.get<AdapterType>("adapter.type") != AdapterType::kNone ||
         task.written.get<OptimizerType>("optimizer.type") != OptimizerType::kAdamW)
    task = random_task(random, 2, 4);
  task.nodes = 1;
  write_setting(task, "zero_optimization.stage3_param_persistence_threshold", int64_t{0});
  const auto hosted = [&] {
    LayoutRules rules(task);
    BoundCalculator bounds(task);
    int64_t fitting = 0;
    for (const Layout& layout : list_layouts(task)) {
      const LayoutRules::Judgement judgement = rules.judge(layout);
      if (judgement.refusal != nullptr || layout.optimizer_offload != OffloadDevice::kCpu) continue;
      fitting += fits_memory(task, bounds.compute_bound(layout, *judgement.properties).memory,
                             layout.ranks())
                     ? 1
                     : 0;
    }
    return fitting;
  };
  CHECK(host_memory_budget(task, 2) == 0);
  CHECK(hosted() > 0);
  task.machine.host_memory_capacity = 2e12;
  CHECK(host_memory_budget(task, 2) == 1'000'000'000'000);
  CHECK(hosted() > 0);
  task.machine.host_memory_capacity = 2;
  CHECK(host_memory_budget(task, 2) == 1);
  CHECK(hosted() == 0);
  // Layouts without offload use some main memory, too.
  const int64_t plain = plan_layout(task, {.data = 2, .micro_batch = 2}, false).memory.host_bytes;
  task.machine.host_memory_capacity = static_cast<double>(2 * plain + 2);
  const SearchResult result = search_layouts(task, {.seconds = kUnlimited});
  REQUIRE(!result.ranking.empty());
  for (const PlannedLayout& one : result.ranking) CHECK(one.memory.host_bytes <= plain + 1);
  task.host_memory = int64_t{1} << 40;
  CHECK(hosted() > 0);
}

TEST_CASE("a slow rank changes the times of layouts, but not which ones are allowed") {
  std::mt19937_64 random(13);
  SearchTask task = random_task(random, 2, 4);
  while (!task.machine.has_gpus) task = random_task(random, 2, 4);
  task.nodes = 1;
  const SearchResult even = search_layouts(task, {.seconds = kUnlimited});
  task.slow_ranks = {{1, 3}};
  const SearchResult uneven = search_layouts(task, {.seconds = kUnlimited});
  REQUIRE(!even.ranking.empty());
  REQUIRE(!uneven.ranking.empty());
  CHECK(uneven.is_proved);
  CHECK(uneven.counts.allowed == even.counts.allowed);
  CHECK(uneven.ranking.front().time->seconds > even.ranking.front().time->seconds);
}

/// Makes the task of Llama-3-405B on so many nodes of 8 H100, with 2,048 rows a step.
SearchTask llama_405b_task(int64_t nodes) {
  const std::string folder = testing::source_dir() + "/tests/sim/llama-3-405b";
  SearchTask task;
  task.machine = read_machine_file(testing::source_dir() + "/configs/machines/h100-80gb.yaml");
  task.nodes = nodes;
  task.batch = 2048;
  task.model =
      parse_model_config(read_file(folder + "/config.json", 1 << 20), folder + "/config.json");
  std::vector<std::string> overrides = layout_overrides(task.batch);
  overrides.insert(overrides.end(),
                   {"device=cuda", "train.steps=10", "model.path=m", "data.sequence_length=8192",
                    "optimizer.type=AdamW", "bf16.enabled=true"});
  LoadResult loaded = load_config_text("search.yaml", "", overrides);
  REQUIRE(loaded.ok());
  task.written = std::move(loaded.written);
  task.context.plans_only = true;
  task.context.hidden_size = task.model.hidden;
  return task;
}

TEST_CASE("layouts of Llama-3-405B on 16,384 GPUs are bounded by what they have in common",
          "[long]") {
  const SearchTask task = llama_405b_task(2048);
  LayoutRules rules(task);
  BoundCalculator bounds(task);
  int64_t allowed = 0, all = 0, compared = 0;
  std::mt19937_64 random(405);
  for (const Layout& layout : list_layouts(task)) {
    ++all;
    const LayoutRules::Judgement judgement = rules.judge(layout);
    allowed += judgement.refusal == nullptr ? 1 : 0;
    // Only one layout in a thousand is bounded here; docs/benchmarks.md has the time of a whole
    // search.
    if (random() % 1000 != 0) continue;
    const std::variant<Config, std::string> tried = resolve_layout(task, layout);
    INFO(layout_text(layout));
    CHECK((judgement.refusal == nullptr) == std::holds_alternative<Config>(tried));
    if (judgement.refusal != nullptr) continue;
    const LayoutBound bound = bounds.compute_bound(layout, *judgement.properties);
    CHECK(bound.seconds > 0);
    CHECK(bound.memory.device_bytes > 0);
    ++compared;
  }
  // These are the numbers in docs/plan.md.
  CHECK(all == 375'558);
  CHECK(allowed == 143'586);
  CHECK(rules.resolved_layouts() == 4'757);
  CHECK(compared > 50);
}

TEST_CASE("a search finds the same fastest layout as planning all layouts", "[long]") {
  std::mt19937_64 random(sweep_seed(1127));
  for (int t = 0; t < sweep_draws(24); ++t) {
    SearchTask task =
        random_task(random, one_of<int>(random, {1, 2}), one_of<int64_t>(random, {1, 2}));
    const std::vector<Layout> layouts = allowed_layouts(task);
    std::vector<PlannedLayout> all(layouts.size());
    run_in_parallel(layouts.size(), [&](size_t i) { all[i] = plan_layout(task, layouts[i]); });
    REQUIRE(!all.empty());
    // Every other task has memory for some layouts only.
    if (t % 2 == 1) {
      std::vector<int64_t> needs;
      for (const PlannedLayout& one : all) needs.push_back(one.memory.device_bytes);
      std::sort(needs.begin(), needs.end());
      task.device_memory = needs[needs.size() / 3];
    }
    double best = std::numeric_limits<double>::infinity();
    for (const PlannedLayout& one : all)
      if (task.device_memory == 0 || one.memory.device_bytes <= task.device_memory)
        best = std::min(best, one.time->seconds);
    const SearchResult result = search_layouts(task, {.seconds = kUnlimited});
    INFO(machine_yaml(task.machine) << layouts.size() << " layouts");
    REQUIRE(!result.ranking.empty());
    CHECK(result.is_proved);
    CHECK(result.ranking.front().time->seconds == best);
    CHECK(result.counts.allowed == static_cast<int64_t>(layouts.size()));
    CHECK(result.counts.allowed + result.counts.refused == result.counts.all);
    // Each allowed layout has one outcome.
    CHECK(result.counts.planned + result.counts.pruned + result.counts.too_large ==
          result.counts.allowed);
  }
}

TEST_CASE("a config written with a layout is read back as the same config") {
  std::mt19937_64 random(7);
  for (int t = 0; t < sweep_rounds(5); ++t) {
    const SearchTask task = random_task(random, 4, 8);
    for (const Layout& layout : allowed_layouts(task)) {
      if (random() % 40 != 0) continue;
      WrittenConfig written = task.written;
      write_layout(layout, written);
      const std::string text = written_yaml(written, {});
      const LoadResult again = load_config_text("again.yaml", text);
      INFO(text);
      REQUIRE(again.ok());
      ResolveContext context = task.context;
      context.world_size = layout.ranks();
      const ResolvedConfig resolved = resolve(again.written, context);
      REQUIRE(resolved.ok());
      CHECK(resolved.config == std::get<Config>(resolve_layout(task, layout)));
    }
  }
}

TEST_CASE("without offloads, all layouts keep their state on the GPUs") {
  std::mt19937_64 random(5);
  SearchTask task = random_task(random, 4, 8);
  const auto offloading = [&] {
    const std::vector<Layout> all = list_layouts(task);
    return std::count_if(all.begin(), all.end(), [](const Layout& one) {
      return one.optimizer_offload != OffloadDevice::kNone ||
             one.parameter_offload != OffloadDevice::kNone;
    });
  };
  CHECK(offloading() > 0);
  task.offloads = false;
  CHECK(offloading() == 0);
}

TEST_CASE("a search that runs out of time lists the fastest planned layout first") {
  std::mt19937_64 random(17);
  for (int t = 0; t < sweep_rounds(6); ++t) {
    SearchTask task = random_task(random, 4, 8);
    const SearchResult result = search_layouts(task, {.seconds = 0.05});
    if (result.ranking.empty()) continue;
    for (const CommonSettingComparison& comparison : result.common_settings)
      if (comparison.best && comparison.best->is_ranked())
        CHECK(comparison.best->time->seconds >= result.ranking.front().time->seconds);
  }
}

TEST_CASE("all layouts have the same global batch, and no two are equal") {
  std::mt19937_64 random(3);
  SearchTask task = random_task(random, 4, 8);
  task.nodes = 1;
  const std::vector<Layout> all = list_layouts(task);
  std::set<std::string> keys;
  for (const Layout& layout : all) {
    CHECK(layout.batch() == 8);
    std::string text;
    for (const auto& [path, value] : layout_keys(layout)) text += cat(path, yaml_text(value), ";");
    CHECK(keys.insert(text).second);
    CHECK(layout.ranks() <= 4);
  }
  CHECK(std::is_sorted(all.begin(), all.end(), [](const Layout& a, const Layout& b) {
    return complexity_score(a) < complexity_score(b);
  }));
}

TEST_CASE(
    "a search reports why common settings are not chosen, and which layout is the smallest if "
    "nothing fits") {
  std::mt19937_64 random(11);
  SearchTask task = random_task(random, 2, 4);
  task.nodes = 1;
  task.device_memory = 1;
  const SearchResult none = search_layouts(task, {.seconds = kUnlimited});
  CHECK(none.ranking.empty());
  REQUIRE(none.least_memory.has_value());
  CHECK(none.least_memory->memory.device_bytes > 1);
  CHECK(!none.least_memory->fits);
  CHECK(!none.fit_on_more_nodes.has_value());

  task.device_memory = 0;
  const SearchResult result = search_layouts(task, {.seconds = kUnlimited});
  REQUIRE(!result.ranking.empty());
  std::set<std::string> named;
  int chosen = 0;
  for (const CommonSettingComparison& comparison : result.common_settings) {
    named.insert(comparison.setting);
    chosen += comparison.is_chosen ? 1 : 0;
    if (comparison.best && comparison.best->time)
      CHECK(comparison.best->time->seconds >= result.ranking.front().time->seconds);
    CHECK((comparison.is_chosen || comparison.best.has_value() || comparison.bound.has_value() ||
           !comparison.refusal.empty()));
  }
  CHECK(named.contains("ZeRO 3"));
  CHECK(chosen <= 1);
}

TEST_CASE(
    "a search without time in which nothing fits plans at most two layouts, on no other number of "
    "nodes") {
  std::mt19937_64 random(11);
  SearchTask task = random_task(random, 2, 4);
  task.nodes = 1;
  task.device_memory = 1;
  const SearchResult result = search_layouts(task, {.seconds = 0});
  CHECK(result.ranking.empty());
  REQUIRE(result.least_memory.has_value());
  CHECK(result.counts.planned <= 2);
  CHECK(!result.fit_on_more_nodes.has_value());
  CHECK(result.first_unchecked_nodes == 2);
  // Without a time limit, a search tries all numbers of nodes.
  CHECK(search_layouts(task, {.seconds = kUnlimited}).first_unchecked_nodes == 0);
}

TEST_CASE("a number of nodes whose layouts were not all checked is not reported as too small") {
  std::mt19937_64 random(11);
  SearchTask task = random_task(random, 2, 64);
  while (task.machine.has_gpus ||
         task.written.get<AdapterType>("adapter.type") != AdapterType::kNone ||
         task.written.get<OptimizerType>("optimizer.type") != OptimizerType::kAdamW)
    task = random_task(random, 2, 64);
  write_setting(task, "zero_optimization.stage3_param_persistence_threshold", int64_t{0});
  task.nodes = 1;
  task.offloads = false;
  task.model.layers = 4;
  task.model.windows.assign(4, 0);
  task.model.hidden = 256;
  task.model.feed_forward = 512;
  task.model.vocab_rows = 512;
  // 60 % of what a small layout on one node needs.
  task.device_memory = 1;
  const SearchResult one = search_layouts(task, {.seconds = kUnlimited, .tries_more_nodes = false});
  REQUIRE(one.least_memory.has_value());
  task.device_memory = one.least_memory->memory.device_bytes * 6 / 10;
  const SearchResult all = search_layouts(task, {.seconds = kUnlimited});
  REQUIRE(all.fit_on_more_nodes.has_value());
  REQUIRE(all.sufficient_nodes > 2);
  CHECK(all.first_unchecked_nodes == 0);
  for (double seconds = 0.005; seconds < 1; seconds *= 1.3) {
    const SearchResult result = search_layouts(task, {.seconds = seconds});
    if (!result.least_memory) continue;  // the time was too short for one node
    INFO(seconds << " s: " << result.sufficient_nodes << ", left " << result.first_unchecked_nodes
                 << ", of " << all.sufficient_nodes);
    const bool enough = result.fit_on_more_nodes && result.sufficient_nodes <= all.sufficient_nodes;
    CHECK((enough || (result.first_unchecked_nodes > 0 &&
                      result.first_unchecked_nodes <= all.sufficient_nodes)));
  }
}

TEST_CASE("a full plan is stopped when its time is over") {
  std::mt19937_64 random(5);
  const SearchTask task = random_task(random, 4, 8);
  const Layout layout = allowed_layouts(task).front();
  CHECK_THROWS_AS(plan_layout(task, layout, true, std::chrono::steady_clock::now()),
                  PlanDeadlineExceeded);
  Layout longer = layout;
  longer.accumulation *= 2;
  CHECK(estimate_planning_effort(task, longer) > estimate_planning_effort(task, layout));
}

TEST_CASE("a search whose time is over before any plan is complete says so", "[long]") {
  // All layouts that may fit keep their state in main memory, and accumulate many micro-batches.
  SearchTask task = llama_405b_task(1);
  const SearchResult result = search_layouts(task, {.seconds = 0});
  CHECK(result.ranking.empty());
  CHECK(!result.is_proved);
  CHECK(result.counts.planned + result.counts.stopped <= 1);
  if (result.counts.planned == 0) CHECK(result.needed_seconds > 0);
}

TEST_CASE("a search that has no time says how much better another layout could be") {
  std::mt19937_64 random(5);
  SearchTask task = random_task(random, 4, 8);
  const SearchResult result = search_layouts(task, {.seconds = 0});
  REQUIRE(!result.ranking.empty());
  CHECK(!result.is_proved);
  CHECK(result.counts.checked < result.counts.all);
  CHECK(result.min_other_seconds <= result.ranking.front().time->seconds);
}

}  // namespace
}  // namespace ftrun

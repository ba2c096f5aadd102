#include "search/memory_table.h"

#include <algorithm>
#include <cmath>

#include "program/memory_plan.h"
#include "program/step_plan.h"
#include "search/plan_layout.h"
#include "search/tasks.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

TEST_CASE("the textbook formulas give the figures printed in textbooks") {
  // The state takes 12 bytes per parameter, 84 GB for 7 B and 840 GB for 70 B; stages divide it.
  CHECK(textbook_state_bytes(0, 1) * 7 == 84);
  CHECK(textbook_state_bytes(0, 64) * 70 == 840);
  CHECK(textbook_state_bytes(1, 8) * 7 == 35);
  CHECK(textbook_state_bytes(2, 8) * 7 == 22.75);
  CHECK(textbook_state_bytes(3, 8) * 7 == 10.5);
  MemoryTableModel model{"seven", 7'000'000'000, small_config(2, false)};
  model.config.hidden = 64;
  const MemoryTableRow row =
      make_memory_table_row(model, {.zero = 1, .ranks = 4, .sequence_length = 32});
  CHECK(row.parts[0].formula == 14e9);
  CHECK(row.parts[1].formula == 14e9);
  CHECK(row.parts[2].formula == 14e9);
  CHECK(row.parts[3].formula == 0);
  // The formula is 2 b s h L, for elements of 2 bytes.
  CHECK(row.parts[4].formula == 2 * 32 * 64 * 2 * 2);
}

TEST_CASE("the lines of a memory table add up to the memory of the plan's rank that needs most") {
  std::mt19937_64 random(38);
  for (int t = 0; t < 24; ++t) {
    MemoryTableModel model{"small", 1'000'000,
                           small_config(one_of<int64_t>(random, {1, 3}), t % 2 == 0)};
    model.config.hidden = one_of<int64_t>(random, {16, 64});
    model.config.vocab_rows = one_of<int64_t>(random, {32, 5000});
    const MemoryTableQuery query{.zero = t % 4,
                                 .ranks = one_of<int64_t>(random, {1, 2, 8}),
                                 .sequence_length = one_of<int64_t>(random, {16, 128}),
                                 .recompute = one_of<RecomputeLevel>(
                                     random, {RecomputeLevel::kNone, RecomputeLevel::kFull})};
    const MemoryTableRow row = make_memory_table_row(model, query);

    SearchTask task;
    task.model = model.config;
    task.machine.has_gpus = true;
    task.machine.devices = 8;
    std::vector<std::string> overrides = layout_overrides(query.ranks);
    overrides.insert(overrides.end(),
                     {"device=cuda", "bf16.enabled=true", "model.path=m", "optimizer.type=AdamW",
                      cat("data.sequence_length=", query.sequence_length)});
    task.written = load_config_text("size.yaml", "", overrides).written;
    task.context.plans_only = true;
    Layout layout;
    layout.data = query.ranks;
    layout.zero = query.zero;
    layout.recompute = query.recompute;
    const PlannedLayout planned = plan_layout(task, layout, false);
    INFO(layout_text(layout));
    CHECK(std::llround(row.planned_bytes()) == planned.memory.device_bytes);
    for (const MemoryTablePart& part : row.parts) {
      INFO(part.name);
      CHECK(part.planned >= 0);
      if (std::abs(part.planned - part.formula) > 1e6) CHECK(part.why != "");
    }
  }
}

TEST_CASE("each part of a memory table equals its category of the plan") {
  for (const int zero : {0, 1, 2, 3}) {
    MemoryTableModel model{"small", 1'000'000, small_config(2, false)};
    model.config.hidden = 64;
    model.config.vocab_rows = 5000;
    const MemoryTableRow row =
        make_memory_table_row(model, {.zero = zero, .ranks = 4, .sequence_length = 128});
    SearchTask task;
    task.model = model.config;
    std::vector<std::string> overrides = layout_overrides(4);
    overrides.insert(overrides.end(), {"device=cuda", "bf16.enabled=true", "model.path=m",
                                       "optimizer.type=AdamW", "data.sequence_length=128"});
    task.written = load_config_text("size.yaml", "", overrides).written;
    task.context.plans_only = true;
    const Config config = std::get<Config>(resolve_layout(task, {.data = 4, .zero = zero}));
    const TierPlan tier = plan_memory(plan_steps(config, model.config, 0)).at(Tier::kDevice);
    const auto category = [&](Category which) {
      const auto c = static_cast<size_t>(which);
      return static_cast<double>(tier.persistent[c] + tier.bytes_at_joint_peak[c]);
    };
    INFO("ZeRO " << zero);
    CHECK(row.peak_instr == tier.peak_instr);
    CHECK(row.parts[0].planned == category(Category::kParameters));
    CHECK(row.parts[1].planned == category(Category::kGradients));
    // The optimizer has two moments and a master copy in fp32, 4 bytes each.
    const double optimizer = category(Category::kOptimizer);
    CHECK(row.parts[2].planned == Approx(optimizer * 2 / 3));
    CHECK(row.parts[3].planned == Approx(optimizer / 3));
    CHECK(row.parts[4].planned == category(Category::kActivations));
    CHECK(row.parts[5].planned == category(Category::kBuckets));
    // The state that the four ranks divide is less than half of the total; small tensors and
    // padding are more than a quarter.
    const auto counted = static_cast<double>(row.parameters);
    const auto check_share = [&](double elements, bool is_cut) {
      CHECK(elements >= (is_cut ? counted / 4 : counted));
      CHECK(elements < (is_cut ? 0.6 : 1.2) * counted);
    };
    check_share(row.parts[0].planned / 2, zero == 3);
    check_share(row.parts[2].planned / 8, zero >= 1);
    CHECK(row.parts[7].planned > 0);
  }
}

TEST_CASE("the memory table of an exercise's model shows a master copy of 4 bytes per parameter") {
  const MemoryTableModel model = make_memory_table_model("1B");
  const MemoryTableRow row = make_memory_table_row(model, {.zero = 3, .ranks = 8});
  const auto counted = static_cast<double>(row.parameters);
  CHECK(std::abs(counted / 1e9 - 1) < 0.005);
  CHECK(row.parts[3].planned / (counted / 8) == Approx(4).epsilon(0.01));
  CHECK(row.parts[2].planned / (counted / 8) == Approx(8).epsilon(0.01));
  CHECK(row.parts[2].planned / row.parts[2].formula == Approx(1).epsilon(0.01));
  CHECK_FALSE(row.communication_wait_share);
}

}  // namespace
}  // namespace ftrun

#include "plan_page.h"

#include <algorithm>
#include <iostream>
#include <map>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "model/size.h"
#include "new_file_checks.h"
#include "nodes_option.h"
#include "plan_json.h"
#include "program/gpu_overhead.h"
#include "program/memory_plan.h"
#include "program/traffic.h"
#include "report/html_page.h"
#include "report/report_page.h"
#include "report/wall_time.h"
#include "search_text.h"
#include "sim/step_lanes.h"
#include "sim/step_trace.h"

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

/// The maximum number of pipeline stages, blocks of lanes, and points of memory curves that a page
/// holds.
constexpr size_t kMaxStages = 16, kMaxBlocks = 40'000, kMaxMoments = 6'400;

PageSources plan_page_sources() {
  return {kPlanPage, kPlanStyle, kPlanScript};
}

int64_t nanoseconds(Picoseconds time) {
  constexpr Picoseconds kPerNanosecond = 1000;
  return time / kPerNanosecond;
}

/// Finds the lowest rank of each stage that the timeline has, by stage.
std::vector<const RankTimeline*> find_rank_of_each_stage(const StepTimeline& timeline) {
  std::map<int, const RankTimeline*> stages;
  for (const RankTimeline& rank : timeline.ranks)
    stages.try_emplace(rank.program->stage.index, &rank);
  std::vector<const RankTimeline*> ranks;
  for (const auto& [stage, rank] : stages) ranks.push_back(rank);
  return ranks;
}

/// Returns at most `max_count` ranks, evenly spread, including the first and the last.
std::vector<const RankTimeline*> choose_evenly(const std::vector<const RankTimeline*>& ranks,
                                               size_t max_count) {
  if (ranks.size() <= max_count) return ranks;
  std::vector<const RankTimeline*> chosen;
  for (size_t i = 0; i < max_count; ++i)
    chosen.push_back(ranks[i * (ranks.size() - 1) / (max_count - 1)]);
  return chosen;
}

/// Labels assigns numbers to texts, so that the page contains each text only once.
class Labels {
 public:
  size_t add_label(const std::string& text) {
    const auto [known, added] = numbers_.try_emplace(text, texts_.size());
    if (added) texts_.push_back(text);
    return known->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::map<std::string, size_t> numbers_;
  std::vector<std::string> texts_;
};

Json lane_json(const Program& program, const LaneBars& lane, Labels& labels) {
  Json bars = Json::array();
  for (const LaneBar& bar : lane.bars) {
    bars.push_back(nanoseconds(bar.begin));
    bars.push_back(nanoseconds(bar.end) - nanoseconds(bar.begin));
    bars.push_back(nanoseconds(bar.busy));
    bars.push_back(static_cast<int>(bar.kind));
    bars.push_back(labels.add_label(instr_label(*bar.first)));
    bars.push_back(labels.add_label(instr_label(*bar.last)));
    bars.push_back(bar.count);
  }
  return {{"name", lane_title(program, lane.lane)},
          {"compute", lane.lane == Lane::kCompute},
          {"busy", nanoseconds(lane.busy)},
          {"bars", std::move(bars)}};
}

/// Lists the parts of a step, and the time that the rank waits for other ranks at its end.
Json parts_json(const StepTime& time) {
  Json parts = Json::array();
  double remaining_seconds = time.seconds;
  for (const auto& [name, seconds] : list_step_parts(time)) {
    parts.push_back({name, seconds});
    remaining_seconds -= seconds;
  }
  constexpr double kRounding = 1e-9;
  parts.push_back({"waits for other ranks to end",
                   remaining_seconds > kRounding * time.seconds ? remaining_seconds : 0});
  return parts;
}

/// Returns the memory of one tier of a rank over the step; null if the tier is empty.
/// `library_bytes` is the number of bytes that libraries use in addition.
Json tier_json(const RankTimeline& rank, Tier tier, const TierPlan& plan, int64_t library_bytes,
               int64_t limit, Picoseconds end, size_t moments) {
  if (plan.total == 0) return nullptr;
  const std::vector<MemorySample> points = sample_step_memory(rank, tier, end, moments);
  Json persistent = Json::object(), begins = Json::array(), by_category = Json::object();
  for (size_t c = 0; c < kCategoryCount; ++c) {
    const std::string name(category_name(static_cast<Category>(c)));
    if (plan.persistent[c] > 0) persistent[name] = plan.persistent[c];
    if (std::none_of(points.begin(), points.end(),
                     [c](const MemorySample& point) { return point.bytes[c] > 0; }))
      continue;
    Json bytes = Json::array();
    for (const MemorySample& point : points) bytes.push_back(point.bytes[c]);
    by_category[name] = std::move(bytes);
  }
  for (const MemorySample& point : points) begins.push_back(nanoseconds(point.begin));
  if (library_bytes > 0) persistent["libraries"] = library_bytes;
  return {{"tier", tier_name(tier)}, {"limit", limit},  {"allocated", plan.total + library_bytes},
          {"kept", persistent},      {"begin", begins}, {"moments", by_category}};
}

}  // namespace

void check_plan_page_path(const std::string& path) {
  refuse_standard_output("--html", path);
  refuse_foreign_page(path, plan_page_sources(), "a page of ftrun plan's",
                      "for the page (--html FILE)");
  check_writable_folder("--html", path);
}

PlanPage make_plan_page(const Config& config, const RankClassPlans& class_plans,
                        const ConfigSource& source, const RequestedMachine& requested,
                        int64_t nodes, const std::string& time) {
  const Machine& machine = requested.machine;
  const int ranks = class_plans.classes().ranks();
  const StateOptions& state = class_plans.plan(0).options.state;
  PlanPage page;
  std::vector<std::string>& facts = page.facts;
  if (!source.files.empty()) facts.push_back(cat("config: ", join(source.files, ", ")));
  if (!source.overrides.empty()) facts.push_back(cat("set: ", join(source.overrides, ", ")));
  facts.push_back(cat("model: ", config.model.path, ", ",
                      human_count(count_parameters(class_plans.plan(0).train.model).total),
                      " parameters"));
  const std::string measured =
      machine.measured_on.empty() ? "" : cat(", measured ", machine.measured_on);
  facts.push_back(cat(count_text(ranks, "rank"), ", ZeRO stage ", state.zero_stage, ", ",
                      config.train_batch_size, " sequences per step, on ",
                      machine_text(machine, nodes, measured)));
  facts.push_back(time);
  if (!requested.what_if_text.empty()) facts.push_back(cat("what if ", requested.what_if_text));
  if (const std::string traffic = node_traffic_warning_of(config, class_plans, nodes);
      !traffic.empty())
    page.warnings.push_back(traffic);
  return page;
}

void write_plan_page(const std::string& path, PlanPage page, const Config& config,
                     const RankClassPlans& class_plans, const StepTimeline& timeline) {
  const std::vector<const RankTimeline*> stages = find_rank_of_each_stage(timeline);
  const std::vector<const RankTimeline*> shown_ranks = choose_evenly(stages, kMaxStages);
  const StepLanes lanes = make_step_lanes(shown_ranks, timeline.end, kMaxBlocks);
  Labels labels;
  Json ranks = Json::array();
  for (size_t r = 0; r < shown_ranks.size(); ++r) {
    const RankTimeline& rank = *shown_ranks[r];
    const StepPlan& plan = class_plans.plan(class_plans.classes().class_of(rank.rank));
    const MemoryPlan memory = plan_memory(plan);
    Json rank_json{{"rank", rank.rank},
                   {"stage", rank.program->stage.index},
                   {"stages", rank.program->stage.count},
                   {"parts", parts_json(rank.time)}};
    Json &over = rank_json["over"] = Json::array(), &own_lanes = rank_json["lanes"] = Json::array();
    for (const auto& [axes, seconds] : rank.time.idle_by_lane.groups)
      over.push_back({axes, seconds});
    for (const LaneBars& lane : lanes.ranks[r])
      own_lanes.push_back(lane_json(*rank.program, lane, labels));
    Json& tiers = rank_json["memory"] = Json::array();
    for (const Tier tier : kTiers) {
      const bool is_device = tier == Tier::kDevice;
      const int64_t limit = is_device             ? page.device_memory_bytes
                            : tier == Tier::kHost ? page.host_memory_bytes
                                                  : 0;
      Json memory_of_tier = tier_json(rank, tier, memory.at(tier),
                                      is_device ? total_bytes(list_gpu_overheads(config, plan)) : 0,
                                      limit, timeline.end, kMaxMoments / shown_ranks.size());
      if (!memory_of_tier.is_null()) tiers.push_back(std::move(memory_of_tier));
    }
    ranks.push_back(std::move(rank_json));
  }
  const double seconds = seconds_of(timeline.end);
  if (timeline.simulated_steps > 1)
    page.facts.push_back(cat("lanes and shares below are those of the first of ",
                             timeline.simulated_steps, " simulated steps, which takes ",
                             seconds_text(seconds), "; the predicted time is their mean"));
  Json kinds = Json::array();
  for (const WorkKind kind : kWorkKinds) kinds.push_back(work_name(kind));
  const Json data{
      {"made", cat("made ", utc_now())},
      {"facts", std::move(page.facts)},
      {"warnings", std::move(page.warnings)},
      {"seconds", seconds},
      {"pixel", nanoseconds(lanes.pixel)},
      {"kinds", kinds},
      {"labels", labels.texts()},
      {"left_out", stages.size() - shown_ranks.size()},
      {"ranks", std::move(ranks)},
      {"traffic", traffic_json(program_traffic(class_plans.plan(0).train.program))["collectives"]},
      {"search", std::move(page.search)}};
  // The path is checked again, because another file may have been made there while the search ran.
  check_plan_page_path(path);
  write_file_atomic(posix_files(), path, fill_page(plan_page_sources(), data));
  std::cout << "wrote " << terminal_text(path) << '\n';
}

}  // namespace ftrun

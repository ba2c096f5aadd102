#include "plan_json.h"

#include <string>

namespace ftrun {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json memory_json(const MemoryPlan& memory) {
  Json json = Json::object();
  for (const Tier tier : kTiers) {
    const TierPlan& plan = memory.at(tier);
    if (plan.total == 0 && tier != Tier::kDevice) continue;
    Json categories = Json::object();
    for (size_t i = 0; i < kCategoryCount; ++i) {
      const auto category = static_cast<Category>(i);
      if (plan.bytes_of(category) > 0)
        categories[std::string(category_key(category))] = plan.bytes_of(category);
    }
    json[std::string(tier_name(tier))] = {{"total", plan.total}, {"categories", categories}};
  }
  return json;
}

Json traffic_json(const Traffic& traffic) {
  Json collectives = Json::array();
  for (const TrafficRow& row : traffic.rows)
    collectives.push_back({{"kind", instr_name(row.kind)},
                           {"axes", row.axes},
                           {"ranks", row.ranks},
                           {"calls", row.calls},
                           {"bytes", row.bytes}});
  return {{"bytes", traffic.bytes}, {"collectives", collectives}};
}

Json time_json(const RunEstimate& run, const StepTime& time, const Machine& machine) {
  Json exposed = Json::object(), json;
  for (const GroupIdle& wait : time.idle_by_lane.groups) exposed[wait.axes] = wait.seconds;
  json = {{"machine", machine.name},
          {"seconds", time.seconds},
          {"tokens_per_second", run.tokens_per_second},
          {"parts",
           {{"layers", time.layer_seconds},
            {"update", time.update_seconds},
            {"other", time.other_seconds},
            {"collectives", time.idle_by_lane.collective_seconds()},
            {"stages", time.idle_by_lane.stage_seconds},
            {"copies", time.idle_by_lane.copy_seconds},
            {"disk", time.idle_by_lane.disk_seconds}}},
          {"exposed", exposed},
          {"stage_waits", time.stage_wait_seconds},
          {"link_bytes",
           {{"node", time.link_bytes.intra_node},
            {"cluster", time.link_bytes.inter_node},
            {"to_host", time.link_bytes.to_host},
            {"from_host", time.link_bytes.from_host},
            {"disk_read", time.link_bytes.disk_read},
            {"disk_written", time.link_bytes.disk_written}}},
          {"checkpoint_bytes", run.checkpoint_bytes}};
  if (run.mfu > 0)
    json.update({{"mfu", run.mfu}, {"mfu_causal", run.mfu_causal}, {"hfu", run.hfu}});
  if (run.steps > 0)
    json.update({{"steps", run.steps}, {"hours", run.hours}, {"device_hours", run.device_hours}});
  if (run.cost > 0) json.update({{"cost", run.cost}, {"currency", machine.price.currency}});
  if (run.checkpoint_seconds > 0) json["checkpoint_seconds"] = run.checkpoint_seconds;
  return json;
}

}  // namespace ftrun

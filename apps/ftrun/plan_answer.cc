#include "plan_answer.h"

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
      if (plan.of(category) > 0)
        categories[std::string(category_name(category))] = plan.of(category);
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

}  // namespace ftrun

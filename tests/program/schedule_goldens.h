#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "axes/pipeline/schedule.h"
#include "base/error.h"
#include "requirements.h"

namespace ftrun::testing {

/// ScheduleGolden is a schedule of another system, read from schedules.json in the reference
/// material: the actions of each stage, and the times of a run with equal chunks. There, each phase
/// of a chunk takes one unit of time, a whole backward pass two, and transfers none.
struct ScheduleGolden {
  PipelineSchedule kind = PipelineSchedule::kGpipe;
  int stages = 0;
  int chunks = 0;
  int32_t micro_batches = 0;
  std::vector<std::string> lists;  // one for each stage, in the form of schedule_text
  nlohmann::json run;
};

inline std::string golden_text(const ScheduleGolden& golden) {
  return cat("kind ", static_cast<int>(golden.kind), ", stages ", golden.stages, ", chunks ",
             golden.chunks, ", micro-batches ", golden.micro_batches);
}

/// Lists the goldens of one name.
inline std::vector<ScheduleGolden> schedule_goldens(const std::string& name,
                                                    PipelineSchedule kind) {
  std::ifstream in(testing::reference_file("schedules.json"));
  std::vector<ScheduleGolden> goldens;
  const nlohmann::json all = nlohmann::json::parse(in);
  for (const auto& entry : all.at("schedules")) {
    if (entry.at("schedule") != name) continue;
    goldens.push_back({.kind = kind,
                       .stages = entry.at("p"),
                       .chunks = entry.at("v"),
                       .micro_batches = entry.at("m"),
                       .lists = entry.at("ranks"),
                       .run = entry.at("sim")});
  }
  return goldens;
}

/// Lists the goldens of all schedules that ftrun implements.
inline std::vector<ScheduleGolden> schedule_goldens() {
  std::vector<ScheduleGolden> all;
  for (const auto& [name, kind] : std::initializer_list<std::pair<const char*, PipelineSchedule>>{
           {"gpipe", PipelineSchedule::kGpipe},
           {"1f1b", PipelineSchedule::k1F1B},
           {"interleaved_1f1b", PipelineSchedule::kInterleaved},
           {"zb_h1", PipelineSchedule::kZbH1},
           {"zbv", PipelineSchedule::kZbV}})
    for (ScheduleGolden& golden : schedule_goldens(name, kind)) all.push_back(std::move(golden));
  return all;
}

}  // namespace ftrun::testing

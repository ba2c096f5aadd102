#include <cstring>
#include <mutex>

#include "checkpoint/save.h"
#include "kernels/kernels.h"
#include "mesh_runs.h"
#include "program/schedule.h"

#include <catch2/catch.hpp>

// A pipeline changes which rank computes what and when: one process that trains the same global batch is
// the oracle, up to rounding, and its schedules do not change a bit where they add up in the same order.

namespace ftrun {
namespace {

using fixtures::give_batches;
using fixtures::meshed;
using fixtures::options_of;
using fixtures::RankRig;
using fixtures::require_same;
using fixtures::train_on;
using fixtures::TrainingMesh;
using fixtures::TrainingOutcome;

ModelConfig model_of(int64_t layers, bool tied = false) {
  ModelConfig model = fixtures::small_model(tied);
  model.layers = layers;
  model.windows.assign(static_cast<size_t>(layers), 0);
  return model;
}

Config scheduled(Config config, PipelineSchedule schedule) {
  const bool chunks = schedule == PipelineSchedule::kInterleaved || schedule == PipelineSchedule::kZbV;
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = chunks ? 2 : 1;
  return config;
}

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kGpipe, PipelineSchedule::k1F1B,
                                           PipelineSchedule::kInterleaved, PipelineSchedule::kZbH1,
                                           PipelineSchedule::kZbV};

TEST_CASE("stages train what one process trains, at every ZeRO stage and with every schedule") {
  set_kernel_threads(1);
  for (const bool tied : {false, true}) {
    const ModelConfig model = model_of(5, tied);
    const TrainingOutcome expected = train_on(fixtures::run_of_stage(0), model, {}, 3);
    for (const int64_t stage : {0, 1, 2, 3})
      for (const PipelineSchedule schedule : kSchedules) {
        const Config config = scheduled(fixtures::run_of_stage(stage), schedule);
        const TrainingMesh mesh{.shards = stage == 0 ? 1 : 2, .stages = 2};
        INFO("stage " << stage << ", " << name_of(schedule) << (tied ? ", tied, " : ", ") << mesh.text());
        require_same(train_on(config, model, mesh, 3), expected);
      }
  }
}

}  // namespace
}  // namespace ftrun

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "axes/pipeline/schedule.h"
#include "base/text.h"
#include "emulated_mesh.h"
#include "kernels/kernels.h"
#include "pairwise.h"
#include "run_settings.h"

#include <catch2/catch.hpp>

// Settings that work together on CPUs must work together on GPUs. Emulated GPUs train the CPU's
// bits with every pair of values of the settings below on two to eight ranks, and with every
// combination of stage and tier on two ranks.

namespace ftrun {
namespace {

using testing::AxisValues;
using testing::TrainingMesh;
using testing::TrainingOutcome;

enum Axis {
  kTensor,
  kPipeline,
  kShards,
  kReplicas,
  kSchedule,
  kStage,
  kSecondary,
  kTier,
  kPrecision,
  kAdapter,
  kOptimizer,
  kRecompute,
  kSteps,
  kAxes
};

constexpr int kTensorRanks[] = {1, 2, 4}, kStagesOfPipeline[] = {1, 2, 4};
constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::k1F1B, PipelineSchedule::kGpipe,
                                           PipelineSchedule::kInterleaved, PipelineSchedule::kZbH1,
                                           PipelineSchedule::kZbV};
constexpr OffloadDevice kTiers[] = {OffloadDevice::kNone, OffloadDevice::kCpu,
                                    OffloadDevice::kNvme};
enum Recompute { kKeepAll, kSelective, kFull, kFullOnHost, kRecomputes };
enum Steps { kInTurn, kOverlapped, kCaptured, kStepWays };

const std::vector<int> kSizes{std::size(kTensorRanks),
                              std::size(kStagesOfPipeline),
                              4,
                              2,
                              std::size(kSchedules),
                              4,
                              2,
                              std::size(kTiers),
                              testing::kPrecisions,
                              testing::kAdapters,
                              static_cast<int>(testing::updating_optimizers().size()),
                              kRecomputes,
                              kStepWays};

testing::Precision precision_of(const AxisValues& row) {
  return static_cast<testing::Precision>(row[kPrecision]);
}
testing::Adapter adapter_of(const AxisValues& row) {
  return static_cast<testing::Adapter>(row[kAdapter]);
}
OptimizerType optimizer_type_of(const AxisValues& row) {
  return testing::updating_optimizers()[static_cast<size_t>(row[kOptimizer])];
}
PipelineSchedule schedule_of(const AxisValues& row) {
  return kSchedules[row[kSchedule]];
}
bool has_two_chunks(const AxisValues& row) {
  return schedule_of(row) == PipelineSchedule::kInterleaved ||
         schedule_of(row) == PipelineSchedule::kZbV;
}

TrainingMesh mesh_of(const AxisValues& row) {
  TrainingMesh mesh{.tensor = kTensorRanks[row[kTensor]],
                    .shards = row[kShards] + 1,
                    .replicas = row[kReplicas] + 1,
                    .stages = kStagesOfPipeline[row[kPipeline]]};
  mesh.micro_batches = mesh.data() * (mesh.stages > 1 ? 4 : 2);
  return mesh;
}

ModelConfig model_of(const AxisValues& row) {
  ModelConfig model = testing::small_model();
  model.vocab_rows = 96;
  model.hidden = 32;
  model.feed_forward = 96;
  model.head_size = 8;
  if (adapter_of(row) == testing::kLoraOnNf4) {
    model.hidden = model.feed_forward = testing::kNf4Block * mesh_of(row).tensor;
    model.head_size = model.hidden / model.query_heads;
  }
  const int model_chunks = mesh_of(row).stages * (has_two_chunks(row) ? 2 : 1);
  return testing::with_layers(model, std::max(2, model_chunks));
}

bool is_possible(const AxisValues& row) {
  const TrainingMesh mesh = mesh_of(row);
  if (mesh.ranks() < 2 || mesh.ranks() > 8) return false;
  if (mesh.stages == 1 && row[kSchedule] > 0) return false;
  if (row[kSecondary] > 0 && (row[kStage] < 3 || mesh.shards < 4)) return false;
  if (row[kTier] > 0 && row[kStage] == 0) return false;
  // A step is captured only if all its work is on the device.
  if (row[kSteps] == kCaptured && (row[kPipeline] > 0 || row[kTier] > 0)) return false;
  // The config refuses the following combinations (unsupported.cc, resolve_checks.cc).
  if (adapter_of(row) == testing::kLoraOnNf4 && row[kStage] == 3 &&
      kTiers[row[kTier]] == OffloadDevice::kNvme)
    return false;
  if (precision_of(row) == testing::kNarrowMasters && row[kStage] == 0) return false;
  return precision_of(row) != testing::kNarrowMoments ||
         optimizer_type_of(row) != OptimizerType::kAdamW8bit;
}

Config config_of(const AxisValues& row) {
  Config config = testing::config_of_stage(row[kStage]);
  config.parallel.schedule = schedule_of(row);
  config.parallel.virtual_stages = has_two_chunks(row) ? 2 : 1;
  if (row[kSecondary] > 0) config.zero.hpz_partition_size = 2;
  testing::set_precision(config, precision_of(row));
  testing::set_adapter(config, adapter_of(row));
  testing::set_optimizer(config, optimizer_type_of(row));
  testing::offload_to(config, kTiers[row[kTier]]);
  constexpr RecomputeLevel kLevels[] = {RecomputeLevel::kNone, RecomputeLevel::kSelective,
                                        RecomputeLevel::kFull, RecomputeLevel::kFull};
  config.recompute.policy = kLevels[row[kRecompute]];
  config.activation_checkpointing.cpu_checkpointing = row[kRecompute] == kFullOnHost;
  config.zero.overlap_comm = row[kSteps] != kInTurn;
  return config;
}

std::string text_of(const AxisValues& row) {
  constexpr const char* kRecomputeNames[] = {"none", "selective", "full", "full, on the host"};
  constexpr const char* kStepNames[] = {"in turn", "overlapped", "captured"};
  return cat(mesh_of(row).text(), ", ", name_of(schedule_of(row)), ", stage ", row[kStage],
             row[kSecondary] > 0 ? " with secondary shards" : "", ", tier ",
             name_of(kTiers[row[kTier]]), ", ", name_of(precision_of(row)), ", ",
             name_of(adapter_of(row)), ", ", name_of(optimizer_type_of(row)), ", recompute ",
             kRecomputeNames[row[kRecompute]], ", steps ", kStepNames[row[kSteps]]);
}

bool is_captured(const AxisValues& row) {
  return row[kSteps] == kCaptured;
}

constexpr int64_t kPairSteps = 2;

void require_same_bits(const AxisValues& row, uint64_t seed) {
  INFO(text_of(row));
  const Config config = config_of(row);
  const ModelConfig model = model_of(row);
  const TrainingMesh mesh = mesh_of(row);
  std::atomic<int64_t> launches = 0;
  // Without the multiple, small gradients would be 0 in fp16.
  const testing::EmulatedMeshOptions options{.steps = kPairSteps,
                                             .gpu = {.step_graph = row[kSteps] == kCaptured},
                                             .gradient_divisor = config.fp16.enabled ? 4096.F : 1,
                                             .launches = &launches};
  const TrainingOutcome expected = train_on_emulated_mesh(config, model, mesh, 0, options),
                        found = train_on_emulated_mesh(config, model, mesh, seed, options);
  CHECK(expected.losses[0] != expected.losses[1]);
  CHECK(found.losses == expected.losses);
  CHECK(found.norms == expected.norms);
  CHECK(found.state == expected.state);
  // Each rank launches its second step in two parts: before and after the decision.
  CHECK(launches == (is_captured(row) ? 2 * mesh.ranks() : 0));
}

TEST_CASE(
    "gpu pairs: any two of mesh, stage, tier, precision, adapter, optimizer, recompute and "
    "capture give the CPU's bits on two to eight ranks") {
  set_kernel_threads(1);
  const std::vector<AxisValues> rows = testing::covering_rows(kSizes, is_possible);
  std::set<std::pair<int, int>> seen;
  uint64_t seed = 1;
  for (const AxisValues& row : rows) {
    require_same_bits(row, seed++);
    seen.emplace(row[kPrecision], row[kOptimizer]);
  }
  // Every pair of precision and optimizer must have occurred, except 8-bit AdamW with moments in 16
  // bits, which the config refuses.
  REQUIRE(seen.size() == testing::kPrecisions * testing::updating_optimizers().size() - 1);
}

TEST_CASE("gpu pairs: every stage and tier gives the CPU's bits on two ranks of each axis") {
  set_kernel_threads(1);
  AxisValues row(kAxes, 0);
  uint64_t seed = 1;
  for (const int axis : {kTensor, kPipeline, kShards, kReplicas})
    for (int stage = 0; stage < 4; ++stage)
      for (int tier = 0; tier < (stage == 0 ? 1 : 3); ++tier) {
        row.assign(kAxes, 0);
        row[static_cast<size_t>(axis)] = 1;
        // Alternating the precision costs no run: neighboring cases differ only in stage or tier.
        row[kPrecision] = seed % 2 == 0 ? testing::kFp32 : testing::kBf16;
        row[kStage] = stage;
        row[kTier] = tier;
        row[kSteps] = kOverlapped;
        require_same_bits(row, seed++);
      }
}

}  // namespace
}  // namespace ftrun

#include "../pairwise.h"
#include "../run_settings.h"
#include "emulated_groups.h"
#include "kernels/kernels.h"

#include <catch2/catch.hpp>

// These tests run the CUDA kernels with every pair of values of mesh, ZeRO stage, precision and
// adapter. gpu_pairs_test.cc also combines these with streams and tiers, but with the CPU's
// kernels.

namespace ftrun {
namespace {

using testing::AxisValues;
using testing::TrainingMesh;

enum Axis { kMesh, kStage, kPrecision, kAdapter };

const std::vector<TrainingMesh>& meshes() {
  static const std::vector<TrainingMesh> all{{.tensor = 2, .micro_batches = 1},
                                             {.shards = 3, .micro_batches = 3},
                                             {.replicas = 2, .micro_batches = 2},
                                             {.stages = 2, .micro_batches = 2},
                                             {.tensor = 2, .shards = 2, .micro_batches = 2}};
  return all;
}

bool is_possible(const AxisValues& row) {
  // Stage 0 has no separate master weights that could be stored in 16 bits.
  return row[kPrecision] != testing::kNarrowMasters || row[kStage] > 0;
}

TEST_CASE(
    "cuda pairs: any two of mesh, stage, precision and adapter give the CPU's losses and weights") {
  set_kernel_threads(1);
  for (const AxisValues& row : testing::covering_rows(
           {static_cast<int>(meshes().size()), 4, testing::kPrecisions, testing::kAdapters},
           is_possible)) {
    const auto precision = static_cast<testing::Precision>(row[kPrecision]);
    const auto adapter = static_cast<testing::Adapter>(row[kAdapter]);
    INFO(name_of(precision) << ", " << name_of(adapter));
    const TrainingMesh& mesh = meshes()[static_cast<size_t>(row[kMesh])];
    Config config = testing::config_of_stage(row[kStage]);
    config.parallel.schedule = PipelineSchedule::k1F1B;
    config.parallel.virtual_stages = 1;
    config.train_micro_batch_size_per_gpu = 1;
    testing::set_precision(config, precision);
    testing::set_adapter(config, adapter);
    ModelConfig model = testing::small_model();
    if (adapter == testing::kLoraOnNf4) {
      model.hidden = model.feed_forward = testing::kNf4Block * mesh.tensor;
      model.head_size = model.hidden / model.query_heads;
    }
    testing::EmulatedNetwork network;
    testing::compare_on_mesh(config, model, mesh, testing::emulated_groups(network));
  }
}

}  // namespace
}  // namespace ftrun

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "partition/layout.h"
#include "mesh_runs.h"

#include <catch2/catch.hpp>

// Shards that hold whole parameters of the layers train what shards of equal parts do: sums over the
// gradient norm's parts are added in another order, and nothing else is.

namespace ftrun {
namespace {

using fixtures::RankRig;

struct Run : fixtures::TrainingOutcome {
  /// Tensors of which a rank's optimizer state is a part only, over the ranks.
  int64_t cut = 0;
};

Run run_of(Config config, int shards, int replicas, bool whole) {
  Run out;
  std::mutex mutex;
  fixtures::WholeState state;
  config.parallel.data_replicate = replicas;
  fixtures::on_mesh(replicas, shards, [&](Rendezvous&, const RankGroups& groups) {
    RankRig rig(config, fixtures::model_of_many_blocks(), groups, nullptr,
                {.owns_whole_parameters = whole});
    fixtures::train_steps(rig, 3, out);
    state.add(rig.state.slices());
    const std::lock_guard lock(mutex);
    for (const StatePiece& piece : rig.plan.train.pieces)
      for (const Slice& slice :
           slices_in(rig.plan.partition.unit(piece.unit), piece.begin, piece.end))
        out.cut += piece.state == 0 && slice.extent < rig.plan.train.model.tensor(slice.tensor).numel();
  });
  out.state = state.take();
  return out;
}

double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  REQUIRE(a.size() == b.size());
  const auto* x = reinterpret_cast<const float*>(a.data());
  const auto* y = reinterpret_cast<const float*>(b.data());
  double most = 0;
  for (size_t i = 0; i < a.size() / sizeof(float); ++i)
    most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  return most;
}

TEST_CASE("shards of whole parameters: the same losses at every stage, tier and with replicas") {
  for (const int64_t stage : {1, 2, 3})
    for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu})
      for (const int replicas : {1, 2}) {
        INFO("stage " << stage << ", " << name_of(device) << ", " << replicas << " replicas");
        Config config = fixtures::run_of_stage(stage);
        config.zero.overlap_comm = true;
        if (device != OffloadDevice::kNone) fixtures::offload_to(config, device);
        const int shards = replicas == 1 ? 3 : 2;
        const Run equal = run_of(config, shards, replicas, false);
        const Run whole = run_of(config, shards, replicas, true);
        CHECK(equal.cut > 0);
        CHECK(whole.cut == 0);
        CHECK(whole.losses[0] == equal.losses[0]);
        for (size_t step = 0; step < 3; ++step) {
          CHECK(whole.losses[step] == Approx(equal.losses[step]).epsilon(1e-6));
          CHECK(whole.norms[step] == Approx(equal.norms[step]).epsilon(1e-6));
        }
        REQUIRE(whole.state.size() == equal.state.size());
        for (const auto& [name, bytes] : whole.state) {
          INFO(name);
          CHECK(largest_difference(bytes, equal.state.at(name)) < 1e-5);
        }
      }
}

}  // namespace
}  // namespace ftrun

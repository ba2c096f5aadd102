#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/step_plan.h"

namespace ftrun {

inline constexpr std::array<Tier, 3> kTiers{Tier::kDevice, Tier::kHost, Tier::kDisk};

/// TierPlan lists what one rank allocates in one tier, in bytes.
struct TierPlan {
  /// Bytes of buffers that live from step to step, by category.
  std::array<int64_t, kCategoryCount> persistent{};
  /// Bytes of each category in the arenas at the moment when that category uses the most bytes.
  std::array<int64_t, kCategoryCount> peak_by_category{};
  /// Bytes of each category in the arenas at the moment when all categories together use the most
  /// bytes, and the instruction that runs then ("" when the tier has no arena).
  std::array<int64_t, kCategoryCount> bytes_at_joint_peak{};
  std::string peak_instr;
  int64_t arenas = 0;
  /// Bytes of persistent buffers and arenas: exactly what a run allocates.
  int64_t total = 0;

  int64_t bytes_of(Category category) const {
    return persistent[static_cast<size_t>(category)] +
           peak_by_category[static_cast<size_t>(category)];
  }
};

/// Formats the categories that have bytes: "activations 1.43 GiB, buckets 229.50 MiB".
std::string categories_text(const std::array<int64_t, kCategoryCount>& bytes);

/// MemoryPlan lists what one rank allocates for its programs.
struct MemoryPlan {
  std::array<TierPlan, kTiers.size()> tiers;

  const TierPlan& at(Tier tier) const { return tiers[static_cast<size_t>(tier)]; }
  /// Returns the main memory of a rank that computes on the CPU: device tier and host tier.
  int64_t main_memory_bytes() const { return at(Tier::kDevice).total + at(Tier::kHost).total; }
};

/// Plans the memory of programs: programs share persistent buffers of the same kind in the same
/// tier, and an arena is as large as the largest program needs.
MemoryPlan plan_memory(const std::vector<const Program*>& programs);
/// Plans the memory of all of a rank's programs.
MemoryPlan plan_memory(const StepPlan& plan);

/// StateFormula holds the memory of the model's states according to the formulas for ZeRO
/// (Rajbhandari et al. 2020, section 3), in bytes for each parameter without sharding: weights that
/// layers read, gradients, and optimizer state (moments, and a master copy where the optimizer does
/// not update the weights that layers read).
struct StateFormula {
  double weights = 0;
  double gradients = 0;
  double moments = 0;
  double master = 0;
  /// The number of ranks that keep a second copy of the weights together at stage 3; 1 = none.
  int secondary_shards = 1;

  double bytes() const { return weights + gradients + moments + master; }
  /// Returns the bytes for each parameter on each rank if `ranks` ranks share one copy of the
  /// state.
  double bytes(int stage, int ranks) const;
};
StateFormula state_formula(const StepPlan& plan);

/// Returns the bytes of parameters, gradients and optimizer state in all tiers, without copies in
/// transit.
int64_t model_state_bytes(const MemoryPlan& plan);

/// Returns the maximum number of bytes of peers' memory that a rank has mapped at one time: over
/// shared memory a collective maps at most kShmMappedBytes of each peer's buffer at a time.
/// Collectives of several groups whose order the waits leave open may run at the same time; for
/// more than two groups the result is an upper bound. `over_shared_memory` says which groups use
/// shared memory.
int64_t mapped_peer_bytes(const std::vector<const Program*>& programs,
                          const std::function<bool(const ProgramGroup&)>& over_shared_memory);

/// Returns an upper bound on the bytes of staging areas that a rank has mapped, over all groups. It
/// does not include the first kShmStagedBytes of each half of each rank's area. Collectives fill
/// more than these if they are larger and peers cannot read their buffers.
int64_t staged_peer_bytes(const std::vector<const Program*>& programs,
                          const std::function<bool(const ProgramGroup&)>& over_shared_memory);

}  // namespace ftrun

#include "sim/rank_classes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "partition/layout.h"
#include "partition/sharding.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

using Traits = std::vector<int64_t>;

/// What the programs of a shard group's ranks differ in, in one stage of the pipeline.
class ShardTraits {
 public:
  ShardTraits(const ModelDescription& model, const Partition& partition, const StateOptions& state, int stage)
      : model_(model), state_(state), cut_(cut_states(partition, state)) {
    for (const TensorInfo& tensor : model.tensors)
      decays_.push_back(!state.decays || state.decays(tensor) ? 1 : 0);
    std::set<Traits> known;
    for (const Unit& unit : partition.units)
      if (lies_on(unit, stage) && known.insert(shape_of(unit)).second) units_.push_back(&unit);
  }

  /// Of shard `index`. `copies`: of what it adds to the norm, how many tensor-parallel ranks have
  /// the same, of which one counts it.
  Traits of(int index, std::set<int>& copies) const {
    Traits traits;
    for (const Unit* unit : units_) {
      const ShardRange own = shard_range(*unit, index, state_.shard.count);
      traits.push_back(own.size());
      add_norm(*unit, own, traits, copies);
      if (cut_.cut(unit->id) && unit->trainable) add_updates(*unit, own, traits);
    }
    return traits;
  }

 private:
  bool lies_on(const Unit& unit, int stage) const {
    return std::any_of(unit.layers.begin(), unit.layers.end(),
                       [&](int layer) { return state_.pipeline.holds(stage, layer); });
  }

  bool decays(TensorId tensor) const { return decays_[static_cast<size_t>(tensor)] != 0; }

  /// Layers are alike: units that are cut in the same places are looked at once.
  Traits shape_of(const Unit& unit) const {
    Traits shape{unit.padded, cut_.cut(unit.id) ? 1 : 0, unit.trainable ? 1 : 0};
    for (const Slice& slice : unit.slices)
      shape.insert(shape.end(), {slice.position_in_unit, slice.extent, decays(slice.tensor) ? 1 : 0,
                                 model_.tensor(slice.tensor).copies});
    return shape;
  }

  void add_norm(const Unit& unit, const ShardRange& own, Traits& traits,
                std::set<int>& copies) const {
    for (const NormRange& range : norm_ranges(unit, model_)) {
      const ShardRange part{std::max(own.begin, range.part.begin),
                            std::min(own.end, range.part.end)};
      if (part.size() <= 0) continue;
      traits.insert(traits.end(), {part.begin - own.begin, part.size(), range.copies});
      copies.insert(range.copies);
    }
  }

  /// Where UnitStore::plan_updates() begins another update.
  void add_updates(const Unit& unit, const ShardRange& own, Traits& traits) const {
    const auto decay = [&](const TensorInfo& tensor) {
      return decays(static_cast<TensorId>(&tensor - model_.tensors.data()));
    };
    for (const ShardRange& part :
         update_intervals(own, state_.optimizer_tier, state_.update_elements))
      for (const DecayRange& run : decay_ranges(unit, model_, decay, part.begin, part.end))
        traits.insert(traits.end(), {run.begin - own.begin, run.decay ? 1 : 0});
  }

  const ModelDescription& model_;
  const StateOptions& state_;
  const Sharding cut_;
  /// By tensor.
  std::vector<char> decays_;
  std::vector<const Unit*> units_;
};

/// Numbers classes in the order of their lowest ranks.
class Classes {
 public:
  void add(int rank, Traits traits) {
    const auto [known, added] =
        numbers_.try_emplace(std::move(traits), static_cast<int32_t>(out_.first.size()));
    if (added) out_.first.push_back(rank);
    out_.of_rank.push_back(known->second);
  }
  RankClasses take() { return std::move(out_); }

 private:
  std::map<Traits, int32_t> numbers_;
  RankClasses out_;
};

/// A shard among those that have the same traits.
struct Shard {
  int64_t kind = 0;
  std::set<int> copies;
};

std::vector<Shard> shards_of(const ShardTraits& traits, int count) {
  std::map<Traits, int64_t> kinds;
  std::vector<Shard> shards(static_cast<size_t>(count));
  for (int index = 0; index < count; ++index) {
    Shard& shard = shards[static_cast<size_t>(index)];
    shard.kind =
        kinds.try_emplace(traits.of(index, shard.copies), static_cast<int64_t>(kinds.size()))
            .first->second;
  }
  return shards;
}

}  // namespace

RankClasses rank_classes(const ModelDescription& model, const Partition& partition,
                         const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  std::vector<std::vector<Shard>> shards;  // of each stage
  for (int stage = 0; stage < state.pipeline.stages(); ++stage)
    shards.push_back(shards_of(ShardTraits(model, partition, state, stage), state.shard.count));
  Classes classes;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const MeshPoint place = mesh.coordinate(rank);
    const Shard& shard = shards[static_cast<size_t>(place.pp)][static_cast<size_t>(place.dp_shard)];
    // What a stage computes is its own.
    Traits traits{place.pp, shard.kind};
    for (const int copies : shard.copies) traits.push_back(place.tp % copies == 0 ? 1 : 0);
    classes.add(rank, std::move(traits));
  }
  return classes.take();
}

World world_of(const RankClasses& classes, std::span<const Program* const> programs,
               const StateOptions& state) {
  require(static_cast<int>(programs.size()) == classes.count(), "a program for each class");
  World world;
  world.programs.assign(programs.begin(), programs.end());
  for (int rank = 0; rank < classes.ranks(); ++rank) {
    World::Rank& made = world.ranks.emplace_back(World::Rank{rank, classes.class_of(rank), {}});
    made.groups.fill(World::kStranger);
  }
  std::vector<size_t> known(world.ranks.size(), 0);
  for (const RankGroup& group : state_groups_of_all(state)) {
    for (const int member : group.ranks)
      world.ranks[static_cast<size_t>(member)].groups[known[static_cast<size_t>(member)]++] =
          static_cast<int32_t>(world.groups.size());
    world.groups.push_back({group.name, {group.ranks.begin(), group.ranks.end()}});
  }
  return world;
}

}  // namespace ftrun

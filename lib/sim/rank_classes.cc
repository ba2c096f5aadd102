#include "sim/rank_classes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "axes/mesh.h"
#include "axes/mesh_axis.h"
#include "base/error.h"
#include "partition/flat_layout.h"
#include "partition/sharding.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

using Traits = std::vector<int64_t>;

/// GradientNormPart is a part of a unit whose squares a shard may add to the gradient norm.
/// `copies` tensor-parallel ranks hold the part, and only one of them counts it.
struct GradientNormPart {
  UnitId unit = 0;
  /// The part's first element in the rank's shard of the unit, and its number of elements.
  int64_t first = 0;
  int64_t count = 0;
  int copies = 1;
};

struct RankTraits {
  Traits traits;
  std::vector<GradientNormPart> gradient_norm_parts;
};

/// TraitFinder finds the properties in which the programs of the state ranks of one pipeline stage
/// differ.
class TraitFinder {
 public:
  TraitFinder(const ModelDescription& model, const Partition& partition, const StateOptions& state,
              int stage)
      : model_(model), state_(state), sharding_(shard_units(partition, state)) {
    kinds_.resize(model.tensors.size());
    for (const Unit& unit : partition.units)
      for (const TensorSlice& slice : unit.slices)
        kinds_[static_cast<size_t>(slice.tensor)] = update_kind_of(model, state, slice);
    std::set<Traits> known;
    for (const Unit& unit : partition.units)
      if (is_on_stage(unit, stage) && known.insert(shape_of(unit)).second) units_.push_back(&unit);
  }

  /// Returns the traits of the state rank with index `index`.
  RankTraits traits_of(int index) {
    state_.data.index = index / state_.context.count;
    state_.context.index = index % state_.context.count;
    RankTraits shard;
    for (const Unit* unit : units_) {
      const GroupPlace place = shard_place(state_, *unit);
      const UnitRange own = shard_range(*unit, place.index, place.count);
      add_gradient_norm_parts(*unit, own, shard.gradient_norm_parts);
      if (!sharding_.is_sharded(unit->id)) continue;
      shard.traits.push_back(own.size());
      if (unit->trainable) add_updates(*unit, own, shard.traits);
    }
    return shard;
  }

 private:
  bool is_on_stage(const Unit& unit, int stage) const {
    return std::any_of(unit.layers.begin(), unit.layers.end(),
                       [&](int layer) { return state_.pipeline.stage_has_layer(stage, layer); });
  }

  const UpdateKind& kind_of(TensorId tensor) const { return kinds_[static_cast<size_t>(tensor)]; }

  /// Describes the shape of a unit. Most layers are alike, so units of the same shape are examined
  /// only once.
  Traits shape_of(const Unit& unit) const {
    Traits shape{unit.padded_numel, sharding_.is_sharded(unit.id) ? 1 : 0, unit.trainable ? 1 : 0};
    for (const TensorSlice& slice : unit.slices)
      shape.insert(shape.end(),
                   {slice.position_in_unit, slice.extent, number_of(kind_of(slice.tensor)),
                    model_.tensor(slice.tensor).copies});
    return shape;
  }

  void add_gradient_norm_parts(const Unit& unit, const UnitRange& own,
                               std::vector<GradientNormPart>& parts) const {
    for (const GradientNormRange& range : gradient_norm_ranges(unit, model_)) {
      const UnitRange part{std::max(own.begin, range.elements.begin),
                           std::min(own.end, range.elements.end)};
      if (part.size() <= 0) continue;
      parts.push_back({.unit = unit.id,
                       .first = part.begin - own.begin,
                       .count = part.size(),
                       .copies = range.copies});
    }
  }

  /// Adds the elements at which add_updates() (program/unit_update.h) begins a new update if the
  /// unit's optimizer state is offloaded. Units whose state stays on the device because only a
  /// share is offloaded are cut in the same way, although their updates are not.
  void add_updates(const Unit& unit, const UnitRange& own, Traits& traits) const {
    for (const UnitRange& interval :
         list_update_intervals(own, state_.optimizer_tier, state_.update_elements))
      for (const UpdateKindRange& part : update_kind_ranges(
               unit, [&](const TensorSlice& slice) { return kind_of(slice.tensor); },
               interval.begin, interval.end))
        traits.insert(traits.end(),
                      {part.begin - own.begin, part.end - own.begin, number_of(part.kind)});
  }

  static int64_t number_of(const UpdateKind& kind) {
    return (kind.decay ? 1 : 0) + (kind.has_8bit_states ? 2 : 0) +
           (kind.straddling_tensor >= 0 ? 4 : 0);
  }

  const ModelDescription& model_;
  /// The options of the rank that traits_of() examines.
  StateOptions state_;
  const Sharding sharding_;
  /// The update kind of each tensor, by its id.
  std::vector<UpdateKind> kinds_;
  std::vector<const Unit*> units_;
};

/// Returns whether the last tensor-parallel rank has padding. Every tensor-parallel rank gets the
/// same result.
bool has_padding(const ModelDescription& model) {
  return std::any_of(model.tensors.begin(), model.tensors.end(), [](const TensorInfo& tensor) {
    return tensor.shape[0] % tensor.rank_extent(0) != 0;
  });
}

/// RankClassesBuilder numbers the classes of ranks in the order of their lowest ranks.
class RankClassesBuilder {
 public:
  void add(int rank, Traits traits) {
    const auto [known, added] =
        numbers_.try_emplace(std::move(traits), static_cast<int32_t>(out_.lowest_ranks.size()));
    if (added) out_.lowest_ranks.push_back(rank);
    out_.of_rank.push_back(known->second);
  }
  RankClasses build() { return std::move(out_); }

 private:
  std::map<Traits, int32_t> numbers_;
  RankClasses out_;
};

}  // namespace

RankClasses find_rank_classes(const ModelDescription& model, const Partition& partition,
                              const StateOptions& state) {
  const RankMesh mesh = state_mesh(state);
  const bool pads = has_padding(model);
  std::vector<std::vector<RankTraits>> shards;  // by stage
  for (int stage = 0; stage < state.pipeline.stages(); ++stage) {
    TraitFinder finder(model, partition, state, stage);
    shards.emplace_back();
    for (int index = 0; index < mesh.group_size(kStateAxes); ++index)
      shards.back().push_back(finder.traits_of(index));
  }
  RankClassesBuilder classes;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const int stage = mesh.place_on(rank, kStageAxes),
              layer_place = mesh.place_on(rank, kLayerAxes);
    const int index = mesh.place_on(rank, kStateAxes);
    const RankTraits& shard = shards[static_cast<size_t>(stage)][static_cast<size_t>(index)];
    // Ranks of different stages run different layers, so the stage is a trait.
    Traits traits{stage, static_cast<int64_t>(shard.traits.size())};
    traits.insert(traits.end(), shard.traits.begin(), shard.traits.end());
    for (const GradientNormPart& part : shard.gradient_norm_parts)
      if (layer_place % part.copies == 0)
        traits.insert(traits.end(), {int64_t{part.unit}, part.first, part.count});
    // The traits were computed with this rank's tensors. On the last tensor-parallel rank, tensors
    // may have padding and end at other elements, so its shards are separate classes.
    if (pads)
      traits.insert(traits.end(), {layer_place + 1 == mesh.group_size(kLayerAxes) ? 1 : 0, index});
    classes.add(rank, std::move(traits));
  }
  return classes.build();
}

World world_of(const RankClasses& classes, std::span<const Program* const> programs,
               const StateOptions& state) {
  require(static_cast<int>(programs.size()) == classes.count(),
          "there is a program for each class");
  World world;
  world.programs.assign(programs.begin(), programs.end());
  for (int rank = 0; rank < classes.ranks(); ++rank)
    world.ranks.push_back({.number = rank, .program = classes.class_of(rank), .groups = {}});
  for (const RankGroup& group : groups_of_all_ranks(state)) {
    for (const int member : group.ranks)
      world.ranks[static_cast<size_t>(member)].groups.push_back(
          static_cast<int32_t>(world.groups.size()));
    world.groups.push_back({group.name(), {group.ranks.begin(), group.ranks.end()}});
  }
  return world;
}

}  // namespace ftrun

#include "program/state_pieces.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "program/buffer_names.h"

namespace ftrun {
namespace {

/// Returns part `index` of `count` of a range, in whole blocks.
UnitRange part_of_range(const UnitRange& range, int index, int count) {
  const int64_t blocks = divide_up(range.size(), kUnitBlock);
  const int64_t size = divide_up(blocks, count) * kUnitBlock;
  return {std::min(range.begin + index * size, range.end),
          std::min(range.begin + (index + 1) * size, range.end)};
}

/// StatePieces lists the pieces of state and assigns memory to their snapshots.
class StatePieces {
 public:
  StatePieces(const StateOptions& options, const UnitPlacement& placement)
      : options_(options), placement_(placement) {}

  void add_unit(const Unit& unit) {
    const StateSpec& state = placement_.spec(unit.id);
    if (!state.used_by_stage) return;
    const UnitRange own_range = placement_.sharding().own_range(unit.id),
                    saved = saved_part(unit.id),
                    parameter_range =
                        state.sharded.parameters ? own_range : UnitRange{0, unit.padded_numel};
    const bool trains = placement_.trains(), master = trains && state.has_master;
    const auto add = [&](int32_t kind, const UnitRange& part, const BufferRange& range,
                         int64_t block) {
      pieces_.push_back({.state = kind,
                         .unit = unit.id,
                         .begin = part.begin,
                         .end = part.end,
                         .saved = kind == UnitStatePiece::kWorking ? UnitRange{} : saved,
                         .range = range,
                         .block = block});
    };
    add(master ? UnitStatePiece::kWorking : UnitStatePiece::kParam, parameter_range,
        placement_.parameters(unit.id, parameter_range), 1);
    if (master) add(UnitStatePiece::kParam, own_range, placement_.weights(unit.id, own_range), 1);
    if (!trains || !state.trainable) return;
    for (size_t s = 0; s < state.formats.states.size(); ++s)
      if (state.formats.states[s])
        add(static_cast<int32_t>(s), own_range, placement_.state(s, unit.id, own_range),
            state.formats.states[s]->block);
  }

  /// Adds the scales of tensors that straddle blocks. Every rank has all of these scales; the
  /// lowest rank of the stage saves them.
  void add_straddling(const ModelDescription& model) {
    const bool saves = is_first_of_stage(options_);
    const StraddlingScales& scales = placement_.straddling();
    const size_t states = options_.optimizer_states.size();
    for (const StraddlingTensor& tensor : scales.tensors)
      for (size_t s = 0; s < scales.states; ++s) {
        const int64_t elements = model.tensor(tensor.tensor).numel();
        pieces_.push_back(
            {.straddling_tensor = tensor.tensor,
             .state = static_cast<int32_t>(states - scales.states + s),
             .unit = tensor.unit,
             .begin = 0,
             .end = elements,
             .saved = saves && is_saved(tensor.unit) ? UnitRange{0, elements} : UnitRange{},
             .range = scales.range(tensor, s, scales.buffers.at(tensor.tier)),
             .block = kTensorBlock});
      }
  }

  /// Assigns memory to snapshots: a range of a host buffer for saved state in memory, a second
  /// range on disk for saved state on disk.
  void place_snapshots(Program& program) {
    std::set<BufferId> on_disk;
    int64_t in_memory = 0;
    for (UnitStatePiece& piece : pieces_) {
      if (piece.state == UnitStatePiece::kWorking || max_saved_elements(piece.unit) == 0) continue;
      const Buffer& buffer = program.at(piece.range.buffer);
      if (piece.straddling_tensor >= 0) {
        piece.snapshot = {-1, in_memory, piece.saved.size() > 0 ? piece.range.bytes : 0};
        in_memory += piece.range.bytes;
      } else if (buffer.tier == Tier::kDisk) {
        on_disk.insert(piece.range.buffer);
      } else {
        piece.snapshot = {-1, in_memory, buffer.format.bytes(piece.saved.size())};
        // The snapshot has room for whole blocks of the unit.
        in_memory += buffer.format.bytes(max_saved_elements(piece.unit));
      }
    }
    const auto add = [&](Tier tier, int64_t bytes) {
      return program.add({.name = cat(buffer_names::kSnapshot,
                                      tier == Tier::kHost ? "" : cat(".", tier_name(tier))),
                          .tier = tier,
                          .category = Category::kSnapshot,
                          .bytes = bytes,
                          .persistent_kind = PersistentKind::kSnapshot});
    };
    if (in_memory > 0) {
      const BufferId host = add(Tier::kHost, in_memory);
      for (UnitStatePiece& piece : pieces_)
        if (piece.snapshot.bytes > 0) piece.snapshot.buffer = host;
    }
    int64_t shadows = 0;
    for (const BufferId buffer : on_disk) {
      program.buffers[static_cast<size_t>(buffer)].shadow_offset = shadows;
      shadows += program.at(buffer).bytes;  // whole disk sectors, as units are
    }
    if (shadows > 0) add(Tier::kDisk, shadows);
  }

  std::vector<UnitStatePiece> release() { return std::move(pieces_); }

 private:
  /// Returns whether this rank's stage saves the unit in checkpoints. Frozen units are not saved,
  /// because the model folder has them.
  bool is_saved(UnitId id) const {
    return placement_.spec(id).is_first_stage && placement_.spec(id).trainable;
  }

  UnitRange saved_part(UnitId id) const {
    if (!is_saved(id)) return {};
    const GroupPlace place = placement_.spec(id).shard_place;
    const Sharding& sharding = placement_.sharding();
    const UnitRange part = sharding.is_sharded(id)
                               ? sharding.own_range(id)
                               : shard_range(placement_.unit(id), place.index, place.count);
    return part_of_range(part, options_.replica, options_.replicas);
  }

  /// Returns the maximum number of elements of a unit that any one of its saving ranks saves. All
  /// these ranks reserve a snapshot of this size; with different sizes, ranks of one class
  /// (sim/rank_classes.h) would have different programs.
  int64_t max_saved_elements(UnitId id) const {
    if (!is_saved(id)) return 0;
    const UnitRange first =
        shard_range(placement_.unit(id), 0, placement_.spec(id).shard_place.count);
    return part_of_range(first, 0, options_.replicas).size();
  }

  const StateOptions& options_;
  const UnitPlacement& placement_;
  std::vector<UnitStatePiece> pieces_;
};

}  // namespace

std::vector<UnitStatePiece> list_unit_state_pieces(Program& program, const ModelDescription& model,
                                                   const StateOptions& options,
                                                   const UnitPlacement& placement) {
  StatePieces pieces(options, placement);
  for (const Unit& unit : placement.partition().units) pieces.add_unit(unit);
  pieces.add_straddling(model);
  if (placement.trains() && options.snapshots) pieces.place_snapshots(program);
  return pieces.release();
}

std::vector<UnitSharding> sharding_of_units(const StateOptions& options,
                                            const UnitPlacement& placement) {
  std::vector<UnitSharding> shardings;
  for (const Unit& unit : placement.partition().units) {
    const StateSpec& state = placement.spec(unit.id);
    const bool master = placement.trains() && state.has_master;
    shardings.push_back(unit_sharding(options, unit, state.first_stage,
                                      master ? state.sharded.optimizer : state.sharded.parameters));
  }
  return shardings;
}

}  // namespace ftrun

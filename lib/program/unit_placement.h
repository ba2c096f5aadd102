#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/description.h"
#include "partition/flat_layout.h"
#include "partition/sharding.h"
#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/state_spec.h"

namespace ftrun {

/// StraddlingScales says where the scales of tensors that straddle blocks are stored. Each tier has
/// one buffer, which holds the scales of all tensors for the first quantized state, then those for
/// the second, and so on.
struct StraddlingScales {
  std::vector<StraddlingTensor> tensors;
  /// The number of states that are codes.
  size_t states = 0;
  /// The buffers of the scales as they were before the step, by tier.
  std::map<Tier, BufferId> buffers;

  const StraddlingTensor& find_tensor(TensorId tensor) const;
  int64_t elements(Tier tier) const { return static_cast<int64_t>(states) * blocks(tier); }
  /// Returns the range of a tensor's scales of one state in `buffer`.
  BufferRange range(const StraddlingTensor& tensor, size_t state, BufferId buffer) const;

 private:
  int64_t blocks(Tier tier) const;
};

/// Adds a buffer of `elements` elements that lives within the step, and returns its whole range.
BufferRange add_temporary(Program& program, std::string name, Tier tier, Category category,
                          const StorageFormat& format, int64_t elements, bool peer_visible = false);

/// UnitPlacement specifies which part of each unit's parameters, gradients and optimizer state this
/// rank holds, and in which bytes of which buffer. It follows the units' StateSpecs.
class UnitPlacement {
 public:
  /// Adds the buffers of the parameters to the program and, if the step trains, the buffers of
  /// gradients and optimizer state. `micro_batches` is 0 for steps that do not train. `partition`
  /// and `options` must outlive the placement.
  UnitPlacement(Program& program, const ModelDescription& model, const Partition& partition,
                const StateOptions& options, int32_t micro_batches);

  /// Returns whether the step trains.
  bool trains() const { return !gradients_.empty(); }
  const GroupCollection& groups() const { return groups_; }
  const Partition& partition() const { return partition_; }
  const Unit& unit(UnitId id) const { return partition_.unit(id); }
  const StateSpec& spec(UnitId id) const { return specs_[static_cast<size_t>(id)]; }
  /// Returns how each unit is sharded over ranks.
  const Sharding& sharding() const { return sharding_; }
  /// Returns the elements of this rank's shard of the unit, or of the whole unit if it is not
  /// sharded, including padding past the unit's end.
  UnitRange shard(UnitId id) const {
    return {sharding_.begin(id), sharding_.begin(id) + sharding_.held_elements(id)};
  }

  // The functions below return the range that holds the given elements of a unit. Even if a unit is
  // sharded, a buffer may hold the whole unit.

  /// Returns the range of parameters as layers read them.
  BufferRange parameters(UnitId id, const UnitRange& elements) const {
    return range(parameters_, id, elements);
  }
  /// Returns the range of the gradient as the update reads it.
  BufferRange gradient(UnitId id, const UnitRange& elements) const {
    return range(gradients_, id, elements);
  }
  /// Returns the range of the master copy, or of the parameters if there is no master copy.
  BufferRange weights(UnitId id, const UnitRange& elements) const {
    return range(spec(id).has_master ? masters_ : parameters_, id, elements);
  }
  /// Returns the range of the optimizer state `number`.
  BufferRange state(size_t number, UnitId id, const UnitRange& elements) const {
    return range(states_[number], id, elements);
  }
  const StraddlingScales& straddling() const { return straddling_; }

 private:
  /// UnitBuffer specifies where this rank keeps a unit's state of one kind.
  struct UnitBuffer {
    BufferId buffer = -1;
    /// The index in the buffer of the element that holds element `first` of the unit.
    int64_t offset = 0;
    int64_t first = 0;
    StorageFormat format;
  };
  struct UnitBufferOptions {
    /// The kind of persistent state; nullopt for gradients, which live within a step.
    std::optional<PersistentKind> persistent_kind;
    std::string name;
    Category category;
    StorageFormat format;
    FlatOrder order = FlatOrder::kForward;
    bool peer_visible = false;
  };
  /// TierStatePart is the part of a unit's state of one kind that lies in one tier.
  struct TierStatePart {
    Tier tier = Tier::kDevice;
    bool exists = true;
    /// Says whether the rank holds only its shard, not a whole copy.
    bool is_sharded = false;
  };
  static BufferRange range(const std::vector<UnitBuffer>& unit_buffers, UnitId id,
                           const UnitRange& elements);
  std::vector<UnitBuffer> add_unit_buffers(
      Program& program, const UnitBufferOptions& options,
      const std::function<TierStatePart(const StateSpec&)>& part_of) const;
  std::vector<std::vector<UnitId>> group_by_buffer(const UnitBufferOptions& options,
                                                   const FlatLayout& layout,
                                                   const std::vector<int64_t>& elements) const;
  static BufferId add_buffer(Program& program, const UnitBufferOptions& options, Tier tier,
                             int64_t elements, UnitId first);
  void add_parameter_buffers(Program& program, DType compute);
  void add_gradient_buffers(Program& program);
  void add_optimizer_buffers(Program& program);
  void add_straddling_buffers(Program& program, const ModelDescription& model);

  const Partition& partition_;
  const StateOptions& options_;
  const GroupCollection groups_;
  const std::vector<StateSpec> specs_;
  const Sharding sharding_;
  std::vector<UnitBuffer> parameters_;
  std::vector<UnitBuffer> gradients_;
  std::vector<UnitBuffer> masters_;
  std::vector<std::vector<UnitBuffer>> states_;
  StraddlingScales straddling_;
};

}  // namespace ftrun

#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"
#include "program/state_spec.h"

namespace ftrun {

/// ParameterUse is one use of a unit's parameters, gathered for the lists that read them; lists
/// that follow each other share one use.
struct ParameterUse {
  UnitId unit = -1;
  int32_t micro_batch = -1;
  BufferId buffer = -1;
};

/// GradientUse is one use of a unit's gradient by the lists that write it, in a micro-batch or (-1)
/// in all of the step.
struct GradientUse {
  UnitId unit = -1;
  int32_t micro_batch = -1;
  /// The stage's chunk whose backward completes the gradient.
  int32_t chunk = 0;
  Range whole;
};

/// Reduction holds the instructions that reduce one unit's gradient.
struct Reduction {
  /// Instructions after the last list that writes the gradient.
  std::vector<Instr> before;
  /// The collective, which may be joined with those of other units; none where no other rank has a
  /// gradient.
  std::optional<Instr> collective;
  /// Instructions after the collective: they bring the result to where the update reads it.
  std::vector<Instr> after;
};

/// UnitStore places the parameters, gradients and optimizer state of each unit on a rank, and makes
/// the instructions that move them, by the units' specifications. Lists that use parameters and
/// gradients ask where they lie; passes ask for the instructions that move them.
class UnitStore {
 public:
  /// Places the parameters, and gradients and optimizer state where the step trains.
  /// `micro_batches` is 0 for steps that do not train.
  UnitStore(Program& program, const ModelDescription& model, const Partition& partition,
            const StateOptions& options, int32_t micro_batches);

  const StateGroups& groups() const { return groups_; }
  const StateSpec& spec(UnitId id) const { return specs_[static_cast<size_t>(id)]; }

  /// Returns bytes [position, +bytes) of the unit's parameters, readable until release().
  Range parameters(const ParamPlace& place, int64_t bytes, int32_t micro_batch);
  /// Ends the uses of all but `kept`, which the next list reads too.
  void release(const std::set<UnitId>& kept = {});
  /// Returns the range into which a list writes a parameter's gradient in a micro-batch.
  Range gradient(const ParamPlace& place, int64_t bytes, int32_t micro_batch);

  /// Lists the uses of parameters, in the order in which lists asked.
  const std::vector<ParameterUse>& parameter_uses() const { return parameter_uses_; }
  const std::vector<GradientUse>& gradient_uses() const { return gradient_uses_; }

  /// Makes the instructions that gather a unit's parameters for a use. The last one fills all of
  /// the buffer.
  std::vector<Instr> gather(const ParameterUse& use, size_t number);
  /// Zeroes the bytes of a gradient that lists leave unwritten; empty where they write all of it.
  std::vector<Instr> clear_padding(const GradientUse& use) const;
  /// Says whether a tensor's gradient is cleared before the first list of a backward pass that
  /// writes the unit's: the head's list adds only to a tied matrix, and the embedding's then adds
  /// to all that it writes.
  bool begins_as_zero(UnitId id, TensorId tensor) const;
  /// Makes the reduction of a gradient. `first`: the sum's buffer holds nothing of this step yet.
  Reduction reduction(const GradientUse& use, bool first);

  /// Emits the sum of squares of this rank's part of the gradients, and the exchange of the sum.
  void norm(BufferId norm);
  /// Counts the slots of the norm buffer (F64): one for each run and rank that may hold a part of
  /// it, added in this order; or, where these would exceed `most_norm_slots`, one for each run, in
  /// which the exchange adds up all ranks' parts.
  int64_t norm_slots() const;
  /// Emits the update of all units and the gathers of the updated parameters, joined until they
  /// have `bucket_elements` elements (DeepSpeed's allgather_bucket_size).
  void update(int64_t bucket_elements);

  /// Lists the pieces of state with their places, for loading, saving and export.
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  ParameterHolders parameter_holders() const;

 private:
  /// Home is the place where this rank keeps a unit's state of one kind.
  struct Home {
    BufferId buffer = -1;
    /// Element of the buffer at which element `first` of the unit lies.
    int64_t offset = 0;
    int64_t first = 0;
    StorageFormat format;
  };
  struct HomeOptions {
    /// The kind of state. Nothing: gradients, which live within a step.
    std::optional<Persistent> which;
    std::string name;
    Category category;
    StorageFormat format;
    FlatOrder order = FlatOrder::kForward;
    bool peer_visible = false;
  };
  /// TierPart is the part of a unit's state of one kind that lies in one tier.
  struct TierPart {
    Tier tier = Tier::kDevice;
    bool wanted = true;
    /// The rank holds its part, not a whole copy.
    bool cut = false;
  };
  /// Update holds the updates of one interval of a unit, with the copies between tiers that they
  /// need.
  struct Update {
    UnitId unit = -1;
    /// The staging buffer, of the two of a name, that the update uses: neighbours use different
    /// ones.
    int turn = 0;
    std::vector<Instr> before;
    std::vector<Instr> updates;
    std::vector<Instr> after;
  };
  /// UpdateOperands are what an update of an interval works on; `states` has nothing for states
  /// that the unit does not have.
  struct UpdateOperands {
    Range gradient;
    Range weights;
    std::vector<std::optional<Range>> states;
  };
  /// Updates holds updates in order, and gathers of what the first `behind` of them have changed.
  struct Updates {
    struct Gather {
      size_t behind = 0;
      Instr instr;
    };
    std::vector<Update> list;
    std::vector<Gather> gathers;
    size_t emitted = 0;
  };
  const Unit& unit(UnitId id) const { return partition_.unit(id); }
  const Home& home(const std::vector<Home>& homes, UnitId id) const {
    return homes[static_cast<size_t>(id)];
  }
  Tier tier_of(const Range& range) const { return program_.at(range.buffer).tier; }
  int32_t chunk_of(UnitId id) const;
  /// Says whether other ranks make shares of the unit's gradient in samples or tokens of their own.
  bool has_gradient_peers(UnitId id) const {
    return spec(id).shard != kNoGroup || spec(id).replica != kNoGroup;
  }
  std::vector<Home> place(const HomeOptions& options,
                          const std::function<TierPart(const StateSpec&)>& part_of);
  std::vector<std::vector<UnitId>> by_buffer(const HomeOptions& options, const FlatLayout& layout,
                                             const std::vector<int64_t>& elements) const;
  BufferId add_buffer(const HomeOptions& options, Tier tier, int64_t elements, UnitId first);
  void place_parameters();
  void place_training_state();
  void place_straddling_scales();
  void list_straddling_pieces();
  void list_pieces(bool trains);
  bool is_saved(UnitId id) const;
  ShardRange saved_part(UnitId id) const;
  int64_t most_saved(UnitId id) const;
  void place_snapshots();
  Range range(const Home& home, int64_t begin, int64_t end) const;
  Range held(const std::vector<Home>& homes, UnitId id) const;

  Range temporary(const std::string& name, Tier tier, Category category,
                  const StorageFormat& format, int64_t elements, bool peer_visible = false);
  Instr& emit(Instr instr);
  Instr copy(const Range& from, const Range& to, UnitId unit) const;
  Instr collective(InstrKind kind, GroupId group, const Range& in, const Range& out,
                   UnitId unit) const;
  std::vector<Range> gaps(const Range& whole, UnitId id) const;

  std::vector<Instr> sum_shares(const GradientUse& use) const;
  void reduce_over(const std::vector<GroupId>& groups, const Range& range, UnitId id,
                   Reduction& reduction) const;
  Range to_wire(const GradientUse& use, Reduction& reduction);
  void collect(const Range& part, const Range& to, UnitId id, bool first,
               std::vector<Instr>& into) const;
  int64_t norm_runs() const;
  int64_t ranks_with_slots() const;
  bool stages_update(UnitId id) const;
  void emit_all(std::vector<Instr>& instrs);
  Instr gather_updated(UnitId id) const;
  void join_gathers(std::initializer_list<Updates*> all, int64_t bucket_elements) const;
  void emit_gathers(Updates& updates, size_t done);
  void plan_updates(UnitId id, std::vector<Update>& updates);
  void plan_update(const ShardRange& interval, Update& plan);
  void plan_measures(UnitId id, std::vector<Update>& measures);
  void emit_updates(Updates& in_place, Updates& staged);
  UpdateOperands bring_operands(const ShardRange& interval, bool written, Update& plan);
  /// Returns the parts of an interval of a unit that are updated alike.
  std::vector<UpdatePart> parts_of(UnitId id, const ShardRange& interval) const;
  Range part_of(const Range& interval, const ShardRange& part, const ShardRange& whole) const;
  /// Returns a state's scales of a tensor that straddles blocks, among those of all such tensors in
  /// one tier.
  Range scales_of(const StraddlingTensor& tensor, size_t state, BufferId buffer) const;
  const StraddlingTensor& straddling(TensorId tensor) const;
  size_t coded_states() const;
  int64_t straddling_blocks(Tier tier) const;
  void add_scales(const UpdatePart& part, Instr& instr) const;
  void measure_straddling();
  void exchange_scales(const Range& scales, const std::set<GroupId>& cut_over);
  void keep_straddling();
  bool hand_on(std::vector<Range>& written, const Range& parameters, Update& plan);
  Range staged(const std::string& name, Tier tier, const StorageFormat& format, int64_t elements,
               const Update& plan);
  Range at_update_tier(const Home& home, const ShardRange& interval, const std::string& name,
                       bool written, Update& plan);

  Program& program_;
  const ModelDescription& model_;
  const Partition& partition_;
  const StateOptions& options_;
  const StateGroups groups_;
  const std::vector<StateSpec> specs_;
  /// The cut of each unit over ranks.
  const Sharding cut_;
  std::vector<Home> parameters_;
  std::vector<Home> gradients_;
  std::vector<Home> masters_;
  std::vector<std::vector<Home>> moments_;
  /// Tensors that straddle blocks of codes, and by tier the buffers of their scales: as they were
  /// before the step, and as they are after it.
  std::vector<StraddlingTensor> straddling_;
  std::map<Tier, BufferId> old_scales_;
  std::map<Tier, BufferId> new_scales_;
  std::vector<StatePiece> pieces_;
  std::vector<ParameterUse> parameter_uses_;
  std::vector<GradientUse> gradient_uses_;
  /// Indices of the uses that lists may still join.
  std::map<UnitId, size_t> open_parameters_;
  std::map<std::pair<UnitId, int32_t>, size_t> open_gradients_;
  /// Staging buffers of updates, by name, tier and turn.
  std::map<std::string, BufferId> staging_;
  /// The place of each unit among all parameters that this tensor-parallel rank uses
  /// (UpdateRange::first_element).
  const FlatLayout index_;
};

}  // namespace ftrun

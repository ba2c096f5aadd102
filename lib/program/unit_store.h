#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "partition/units.h"
#include "program/program.h"
#include "program/state_options.h"

namespace ftrun {

/// A part of a unit that the gradient norm sums by itself, and how many neighbouring tensor-parallel
/// ranks have copies of it, of which one is counted.
struct NormRun {
  UnitId unit = -1;
  ShardRange part;
  int copies = 1;
};

/// Where a rank keeps the parameters, gradients and optimizer state of each unit, and the
/// instructions that move them: what differs between ZeRO stages is here and nowhere else.
class UnitStore {
 public:
  /// `micro_batches` of a step that trains, where gradients and optimizer state are there too; 0 of
  /// others.
  UnitStore(Program& program, const ModelDescription& model, const Partition& partition,
            const StateOptions& options, int32_t micro_batches);

  const StateGroups& groups() const { return groups_; }

  /// Makes a unit's parameters readable until release(), emitting what brings them unless they are
  /// there.
  void bring(UnitId unit, int32_t micro_batch);
  /// Bytes [position, +bytes) of the unit's parameters, where bring() put them.
  Range parameters(const ParamPlace& place, int64_t bytes) const;
  /// Lets go of all but `kept`, which the next list reads too.
  void release(const std::set<UnitId>& kept = {});

  /// Where a layer's backward (or the head's forward) writes a parameter's gradient in a
  /// micro-batch.
  Range gradient(const ParamPlace& place, int64_t bytes, int32_t micro_batch);
  /// True when the gradients of micro-batches are added by their lists, in one buffer of the step.
  bool lists_accumulate() const { return !shards_gradients_; }
  /// Emits the reduction of a unit whose gradients of a micro-batch are complete.
  void reduce(UnitId unit, int32_t micro_batch, bool last);

  /// Emits the sum of squares of this rank's part of the gradients, and its exchange.
  void norm(BufferId norm);
  /// Slots of the norm buffer (F64): one for each run and rank that may hold a part of it, added in
  /// this order.
  int64_t norm_slots() const;
  /// Emits the update of all units and the gathers of what it changed.
  void update();

  /// What lies where, for loading, saving and export.
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  /// Where this rank keeps a unit's state of one kind.
  struct Home {
    BufferId buffer = -1;
    /// Element of the buffer where element `first` of the unit lies.
    int64_t offset = 0;
    int64_t first = 0;
  };
  struct HomeOptions {
    std::string name;
    Category category;
    DType dtype;
    FlatOrder order = FlatOrder::kForward;
    bool peer_visible = false;
    /// Whole copies of units, not only what this rank holds of them.
    bool whole = false;
  };
  /// The updates of one stretch of a unit with the copies between tiers that they need.
  struct Update {
    std::vector<Instr> before;
    std::vector<Instr> updates;
    std::vector<Instr> after;
  };
  /// The gather of a unit whose updates are done with the first `behind` of a list.
  struct Gather {
    size_t behind = 0;
    UnitId unit = -1;
  };

  const Unit& unit(UnitId id) const { return partition_.unit(id); }
  const Home& home(const std::vector<Home>& homes, UnitId id) const {
    return homes[static_cast<size_t>(id)];
  }
  Tier tier_of(const Range& range) const { return program_.at(range.buffer).tier; }
  bool gathers(UnitId id) const;
  bool has_master(UnitId id) const;
  Tier optimizer_tier(UnitId id) const { return optimizer_tiers_[static_cast<size_t>(id)]; }
  std::vector<Tier> choose_optimizer_tiers() const;
  std::vector<Home> place(const HomeOptions& options, const std::vector<Tier>& tiers,
                          const std::vector<char>& wanted);
  void place_parameters();
  void place_training_state();
  void list_pieces(bool trains);
  ShardRange saved_part(UnitId id) const;
  Range range(const Home& home, int64_t begin, int64_t end) const;
  Range held(const std::vector<Home>& homes, UnitId id) const;

  BufferId add_buffer(Buffer buffer);
  Range temporary(const std::string& name, Tier tier, Category category, DType dtype,
                  int64_t elements, bool peer_visible = false);
  Instr& emit(Instr instr);
  Instr copy(const Range& from, const Range& to, UnitId unit) const;
  Instr collective(InstrKind kind, GroupId group, const Range& in, const Range& out,
                   UnitId unit) const;
  std::vector<Range> gaps(const Range& whole, UnitId id) const;
  void clear_padding(UnitId id, const Range& whole);

  void gather(UnitId id, int32_t micro_batch);
  void sum_everywhere(const Range& range, UnitId id);
  void sum_copies(UnitId id, const Range& whole);
  void reduce_whole(UnitId id);
  void reduce_into_home(UnitId id, int32_t micro_batch);
  Range to_wire(const Range& gradient, UnitId id, int32_t micro_batch);
  void collect(const Range& part, const Range& to, UnitId id, bool first, bool follows);
  bool stages_update(UnitId id) const;
  void emit_all(std::vector<Instr>& instrs);
  void gather_updated(std::vector<Gather>& gathers, size_t done);
  void plan_updates(UnitId id, std::vector<Update>& updates);
  Update plan_update(UnitId id, int64_t begin, int64_t end);
  bool hand_on(std::vector<Range>& written, const Range& parameters, UnitId id, Update& plan);
  Range staged(const std::string& name, Tier tier, DType dtype, int64_t elements);
  Range at_update_tier(const Range& at, const std::string& name, bool written, UnitId id,
                       Update& plan);

  Program& program_;
  const ModelDescription& model_;
  const Partition& partition_;
  const StateOptions& options_;
  const StateGroups groups_;
  const DType compute_;
  const DType gradient_;
  const bool shards_gradients_;
  /// How states are cut over the shard group.
  const Sharding cut_;
  std::vector<Tier> optimizer_tiers_;
  std::vector<Home> parameters_;
  std::vector<Home> gradients_;
  std::vector<Home> masters_;
  std::vector<std::vector<Home>> moments_;
  std::vector<StatePiece> pieces_;
  /// Gathered parameters and whole gradients in use.
  std::map<UnitId, Range> gathered_;
  std::map<UnitId, Range> whole_gradients_;
  int gathers_ = 0;
  /// Number of the stretch that is planned, and the staging buffers that stretches use in turn.
  int stretch_ = 0;
  std::map<std::string, BufferId> staging_;
  /// Element of each unit among all parameters that this tensor-parallel rank uses (Instr::first_element).
  const FlatLayout index_;
  const std::vector<NormRun> norm_runs_;
};

}  // namespace ftrun

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/first_weights.h"
#include "engine/memory.h"
#include "engine/rank_groups.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/step_plan.h"

namespace ftrun {

/// StateReading says how a state is read: as it is now or as it was when it was copied, and through
/// which memory state on disk is read (none given: its own).
struct StateReading {
  bool of_snapshot = false;
  std::span<std::byte> sectors;
};

/// ModelState shows the parameters and optimizer state that a rank holds as named tensors: filled
/// from a model folder or a checkpoint, cut into slices for saving, read in pieces for export. It
/// works for any layout, tier and dtype: those are in the plan's pieces.
class ModelState {
 public:
  /// Borrows all. `state_kinds` names the optimizer's state buffers in order: {"exp_avg",
  /// "exp_avg_sq"}. `memory` must have allocated the plan's training program.
  ModelState(const StepPlan& plan, RankMemory& memory, std::vector<std::string> state_kinds);

  /// Fills this rank's part of every parameter, as training begins. Error(kBadInput) with every
  /// tensor that is missing, unknown or misshapen.
  void load(FirstWeights first);

  /// Fills everything this rank holds: trained state from the checkpoint, whatever layout wrote it,
  /// frozen parameters from `first`, as when training began. Returns the states that the checkpoint
  /// holds in another precision. Error(kBadInput).
  std::vector<StateConversion> load(Checkpoint& checkpoint, FirstWeights first);

  /// Lists the slices that this rank writes into a checkpoint: of state that several ranks hold
  /// alike, the first rank writes it. The slices refer to the state itself: it must not change
  /// while they are read. State on disk is read by way of `sectors`, by one thread at a time, if
  /// they are given (a multiple of 4096 bytes).
  std::vector<StateSlice> slices(std::span<std::byte> sectors = {}) const;

  /// Lists the slices of a copy of the state as it is now (StateOptions::snapshots), which stays
  /// until release_snapshot(): to be read by another thread while training continues. One copy at a
  /// time; not beside lanes that run.
  std::vector<StateSlice> snapshot(std::span<std::byte> sectors = {});
  void release_snapshot();
  /// Makes the kernel give the copy's pages before the first copy waits for them; from any thread.
  void populate_snapshot() const;

  /// Collects elements [begin, end) of a parameter in fp32. Collective over `group`, the ranks that
  /// together hold one copy of the model: only its first one may have `receives`, and gets them.
  void collect(const std::string& tensor, int64_t begin, int64_t end, bool receives,
               Communicator& group, std::span<float> out) const;

  /// Lists every state of the whole model that is saved: that of trained parameters.
  std::vector<StateInfo> states() const;

 private:
  /// ReadTensor reads a state of a unit's tensor: it fills `out` with a box of it, row by row.
  using ReadTensor = std::function<void(const StatePiece& piece, const TensorInfo& tensor,
                                        const Box& box, void* out)>;

  bool trains(const StatePiece& piece) const { return partition_.unit(piece.unit).trainable; }
  ReadTensor reading(const FirstWeights& first) const;
  std::string kind_of(int32_t state) const;
  /// Returns the dtype of a state as a checkpoint holds it.
  DType stored_dtype(const StatePiece& piece) const;
  DType dtype(const StatePiece& piece) const;
  const PackedFormat& packed(const StatePiece& piece) const;
  /// Lists the slices of the tensors whose state lies in elements [begin, end) of a piece.
  std::vector<Slice> slices_of(const StatePiece& piece, int64_t begin, int64_t end) const;
  /// Returns the tensor as checkpoints hold its state: a state of blocks has the shape of the
  /// blocks.
  TensorInfo stored_tensor(const StatePiece& piece, TensorId id) const;
  int64_t bytes_of(const StatePiece& piece, int64_t elements) const;
  Range part(const StatePiece& piece, int64_t begin, int64_t end) const;
  std::vector<StateSlice> slices_of(StateReading reading) const;
  StateSlice saved_slice(const StatePiece& piece, const TensorInfo& tensor, const Box& box,
                         int64_t first, StateReading reading) const;
  void fill(const StatePiece& piece, DType source, const ReadTensor& read);
  void pack(const StatePiece& piece, const Slice& slice, const FirstWeights& first);
  void measure_lengths(FirstWeights& first,
                       const std::function<bool(const StatePiece&)>& is_read) const;
  void fill_first(const StatePiece& piece, const FirstWeights& first);
  void fill_constant(const StatePiece& piece, double number);
  void store(const StatePiece& piece, int64_t begin, int64_t end, DType source, const void* data,
             std::byte* room);
  std::pair<const Unit*, int64_t> place_of(TensorId tensor) const;
  void collect_part(const Unit& unit, int index, const ShardRange& wanted, bool receives,
                    Communicator& group, std::span<float> out) const;
  const StatePiece& parameters_of(UnitId unit) const;
  void fetch(const StatePiece& piece, int64_t begin, int64_t end, void* out,
             StateReading reading = {}) const;
  void fetch_f32(const StatePiece& piece, int64_t begin, int64_t end, float* out) const;

  const ModelDescription& model_;
  const Program& program_;
  const std::vector<StatePiece>& pieces_;
  const std::vector<UnitHolders>& holders_;
  const Partition& partition_;
  const StateOptions& options_;
  RankMemory& memory_;
  std::vector<std::string> kinds_;
};

}  // namespace ftrun

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
#include "engine/initial_weights.h"
#include "engine/memory.h"
#include "engine/rank_communicators.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/step_plan.h"

namespace ftrun {

/// StateReadOptions specifies which version of the state is read, the present one or the snapshot,
/// and the buffer through which state on disk is read (empty: read_elements() allocates one).
struct StateReadOptions {
  bool of_snapshot = false;
  std::span<std::byte> sectors;
};

/// ModelState presents the parameters and optimizer state of a rank as named tensors. They are
/// filled from a model folder or a checkpoint, cut into slices for saving, and read in pieces for
/// export. It works for any layout, tier and dtype, as the plan's pieces describe these.
class ModelState {
 public:
  /// Borrows all arguments. `memory` must have allocated the plan's training program.
  ModelState(const StepPlan& plan, RankMemory& memory);

  /// Fills this rank's part of every parameter with its initial values. Throws Error(kBadInput)
  /// with every tensor that is missing, unknown or misshapen.
  void load(InitialWeights initial);

  /// Fills all state of this rank: trained state from the checkpoint, regardless of the layout that
  /// wrote it, and frozen parameters from `initial`, as at the start of training. Returns the
  /// states that the checkpoint holds in another precision. Throws Error(kBadInput).
  std::vector<StateDtypeChange> load(Checkpoint& checkpoint, InitialWeights initial);

  /// Lists the slices that this rank writes into a checkpoint. If several ranks hold copies of a
  /// state, the first of them writes it. The slices refer to the state itself, which must not
  /// change while they are read. State on disk is read through `sectors` (a multiple of 4096
  /// bytes), if given, by one thread at a time.
  std::vector<StateSlice> slices(std::span<std::byte> sectors = {}) const;

  /// Copies the present state (StateOptions::snapshots) and lists the slices of the copy, which
  /// another thread may read while training continues. The copy stays until release_snapshot();
  /// there is one at a time. Must not be called while lanes run.
  std::vector<StateSlice> take_snapshot(std::span<std::byte> sectors = {});
  void release_snapshot();
  /// Makes the kernel allocate the copy's pages, so that the first copy need not wait for them. Any
  /// thread may call it.
  void populate_snapshot() const;

  /// Gathers elements [begin, end) of a parameter in fp32. Collective over `group`, the ranks that
  /// together hold one copy of the model: only its first rank may set `receives`, and gets the
  /// elements. State on disk is read through `sectors`, if given, as in slices().
  void gather_elements(const std::string& tensor, int64_t begin, int64_t end, bool receives,
                       Communicator& group, std::span<float> out,
                       std::span<std::byte> sectors = {}) const;
  /// Returns an upper bound on the bytes that gather_elements() allocates to receive `elements`
  /// elements: for parts of tensors that ranks divide, and for stored numbers that are not fp32.
  int64_t gather_bytes(int64_t elements) const;

  /// Lists every state of the whole model that is saved: the states of trained parameters.
  std::vector<StateInfo> states() const;

 private:
  /// ReadTensor reads a state of a unit's tensor: it fills `out` with a box of the tensor, row by
  /// row.
  using ReadTensor = std::function<void(const UnitStatePiece& piece, const TensorInfo& tensor,
                                        const Box& box, void* out)>;

  bool trains(const UnitStatePiece& piece) const { return partition_.unit(piece.unit).trainable; }
  ReadTensor make_reader(const InitialWeights& initial) const;
  std::string kind_of(int32_t state) const;
  /// Returns the dtype of a state as a checkpoint holds it.
  DType stored_dtype(const UnitStatePiece& piece) const;
  DType dtype(const UnitStatePiece& piece) const;
  const QuantizedFormat& quantized(const UnitStatePiece& piece) const;
  /// Lists the slices of the tensors whose state lies in elements [begin, end) of a piece.
  std::vector<TensorSlice> slices_of(const UnitStatePiece& piece, int64_t begin, int64_t end) const;
  /// Returns the shape in which checkpoints hold a tensor's state: a state of blocks has the shape
  /// of the blocks.
  TensorInfo stored_tensor(const UnitStatePiece& piece, TensorId id) const;
  int64_t bytes_of(const UnitStatePiece& piece, int64_t elements) const;
  BufferRange range_of(const UnitStatePiece& piece, int64_t begin, int64_t end) const;
  std::vector<StateSlice> saved_slices(StateReadOptions reading) const;
  StateSlice saved_slice(const UnitStatePiece& piece, const TensorInfo& tensor, const Box& box,
                         int64_t first, StateReadOptions reading) const;
  void fill_piece(const UnitStatePiece& piece, DType source, const ReadTensor& read);
  void quantize_slice(const UnitStatePiece& piece, const TensorSlice& slice,
                      const InitialWeights& initial);
  void measure_row_norms(InitialWeights& initial,
                         const std::function<bool(const UnitStatePiece&)>& is_read) const;
  void fill_initial(const UnitStatePiece& piece, const InitialWeights& initial);
  void fill_constant(const UnitStatePiece& piece, double number);
  void write_elements(const UnitStatePiece& piece, int64_t begin, int64_t end, DType source,
                      const void* data, std::byte* conversion_buffer);
  std::pair<const Unit*, int64_t> location_of(TensorId tensor) const;
  void gather_part(const Unit& unit, int index, const UnitRange& wanted, bool receives,
                   Communicator& group, std::span<float> out, std::span<std::byte> sectors) const;
  const UnitStatePiece& parameters_of(UnitId unit) const;
  void read_elements(const UnitStatePiece& piece, int64_t begin, int64_t end, void* out,
                     StateReadOptions reading = {}) const;
  void read_elements_f32(const UnitStatePiece& piece, int64_t begin, int64_t end, float* out,
                         StateReadOptions reading) const;

  const ModelDescription& model_;
  const Program& program_;
  const std::vector<UnitStatePiece>& pieces_;
  const std::vector<UnitSharding>& shardings_;
  const Partition& partition_;
  const StateOptions& options_;
  RankMemory& memory_;
};

}  // namespace ftrun

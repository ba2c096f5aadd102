#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cluster/rank_mesh.h"
#include "model/description.h"
#include "partition/units.h"
#include "program/step_builder.h"
#include "program/update_operands.h"
#include "sim/walk.h"

namespace ftrun {

/// Interpreter runs the programs of all ranks of a mesh together, on symbols instead of numbers.
/// The result of an operation is a hash of its inputs. A sum is a sum of 64-bit integers: its order
/// does not matter, but a term that is missing or counted twice changes it. A conversion changes
/// nothing. Memory is laid out as planned: buffers share arenas, so reading overwritten bytes gives
/// a wrong value. Lanes run in a random order, as far as waits allow, and a collective runs when
/// all members of its group have reached it.
///
/// An error in a program (a missing wait, an arena that is too small, a gradient counted twice, a
/// wrong part of a shard) shows as a fault, or as final parameters that differ from those of the
/// simplest program for the same mesh. The programs of all tensor-parallel ranks run with the
/// graphs of `model`, because the graphs of different tensor-parallel ranks differ only in
/// attributes.
class Interpreter {
 public:
  /// Prepares all ranks. `steps[r]` is rank r's program; `model` and `partition` must outlive this
  /// object.
  Interpreter(const ModelDescription& model, const Partition& partition,
              std::vector<StepProgram> steps, const RankMesh& mesh);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Fills parameters and optimizer state with symbols, as a run loads them before its first step.
  void load();
  /// Runs one step; `finite` is the decision of kDecide. Returns the first fault, or "".
  std::string run(std::mt19937_64& random, bool finite = true);

  /// Returns the values of one state (UnitStatePiece::state) for each unit of each tensor-parallel
  /// rank, by element; padding is 0. Sets `fault` if ranks that hold the same element have
  /// different values, or if no rank holds an element.
  std::vector<std::vector<uint64_t>> collect_state(int32_t kind, std::string& fault) const;
  /// Returns the contents of a rank's loss buffer.
  std::vector<uint64_t> collect_loss(int rank) const;

 private:
  struct SymbolicRank {
    StepProgram step;
    int tensor_rank = 0;
    /// The number of the part of the batch (samples, and part of their rows) from which the rank's
    /// tokens are made.
    uint64_t batch_part = 0;
    std::vector<std::vector<uint64_t>> persistent;
    std::array<std::vector<uint64_t>, kArenaCount> arenas;
    uint64_t scale = 0;
  };
  /// RangeSymbols holds the symbols of a range of a buffer. A cell stands for two bytes, so an
  /// element may have several cells.
  template <class Symbol>
  struct RangeSymbols {
    Symbol* at;
    int64_t size;   // cells per element
    int64_t count;  // elements
  };

  using Cells = RangeSymbols<uint64_t>;
  using ConstCells = RangeSymbols<const uint64_t>;
  struct CollectedState;

  template <class Rank>
  static auto find_cells(Rank& rank, const BufferRange& range, DType dtype);
  static Cells cells(SymbolicRank& rank, const BufferRange& range, DType dtype);
  static Cells cells(SymbolicRank& rank, const BufferRange& range);
  static ConstCells cells(const SymbolicRank& rank, const BufferRange& range);
  template <class Symbol>
  static uint64_t read(const RangeSymbols<Symbol>& cells, int64_t element);
  static void write(const Cells& cells, int64_t element, uint64_t value);

  void execute(Walk::LaneHead lane_head);
  void run_transfer(std::span<const int32_t> members, Walk::LaneHead lane_head);
  void run_reduction_or_gather(std::span<const int32_t> members, Walk::LaneHead lane_head,
                               size_t index);
  void move_blocks(std::span<const int32_t> members, Walk::LaneHead lane_head, size_t index);
  void run_counted_all_to_all(std::span<const int32_t> members, Walk::LaneHead lane_head);
  void run_instr(size_t rank, const Instr& instr);
  void load_batch(SymbolicRank& rank, const Instr& instr);
  void run_ops(SymbolicRank& rank, const Instr& instr);
  void run_copy(SymbolicRank& rank, const Instr& instr);
  void run_norm(SymbolicRank& rank, const Instr& instr);
  void run_decide(SymbolicRank& rank, const Instr& instr);
  void update_or_compute_scales(SymbolicRank& rank, const Instr& instr);
  void update_numbers(SymbolicRank& rank, const Instr& instr, const UpdateOperands& operands);
  void update_codes(SymbolicRank& rank, const Instr& instr, const UpdateOperands& operands);
  void fail(const std::string& fault);
  std::string instr_text(const SymbolicRank& rank, const Instr& instr) const;
  static void scramble_persistent(SymbolicRank& rank, std::mt19937_64& random);
  void compare_copies(const std::vector<std::vector<uint64_t>>& values, std::string& fault) const;
  void collect_piece(size_t rank, const UnitStatePiece& piece, int32_t kind, CollectedState& state,
                     std::string& fault) const;
  void check_all_held(int32_t kind, const CollectedState& state, std::string& fault) const;
  static void compare_scales(const ConstCells& scales, const UnitStatePiece& piece,
                             std::string& fault, std::map<TensorId, std::vector<uint64_t>>& known);
  int copies_of(UnitId unit, int64_t element) const;

  const ModelDescription& model_;
  const Partition& partition_;
  const int tensor_ranks_;
  std::vector<SymbolicRank> ranks_;
  World world_;
  std::vector<LaneSchedule> schedules_;
  std::optional<Walk> walk_;
  /// The number of neighboring tensor-parallel ranks that hold a copy of each element of a unit; 0
  /// for padding.
  std::vector<std::vector<int>> copies_;
  uint64_t step_ = 0;
  std::string fault_;
};

}  // namespace ftrun

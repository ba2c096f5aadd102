#include "sim/interpreter.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "program/layer_instr.h"

namespace ftrun {
namespace {

constexpr uint64_t kTail = 0x9E3779B97F4A7C15ULL;

uint64_t hash_pair(uint64_t a, uint64_t b) {
  uint64_t x = a * 0xBF58476D1CE4E5B9ULL + b + 0x94D049BB133111EBULL;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93ULL;
  return x ^ (x >> 29);
}

/// Fills cells with new pseudo-random values.
void fill_with_garbage(std::vector<uint64_t>& cells, std::mt19937_64& random) {
  uint64_t value = random();
  for (uint64_t& cell : cells) cell = value += 0xD1B54A32D192ED03ULL;
}

World world_of_all(const std::vector<const Program*>& programs) {
  std::vector<RankProgram> ranks;
  for (const Program* program : programs)
    ranks.push_back({static_cast<int>(ranks.size()), program});
  return world_of(ranks);
}

}  // namespace

// The small functions below run for every element of every operation. Most elements have one or two
// cells.

template <class Symbol>
inline uint64_t Interpreter::read(const RangeSymbols<Symbol>& cells, int64_t element) {
  const uint64_t* at = cells.at + element * cells.size;
  uint64_t value = at[0];
  if (cells.size == 1) return value;
  if (at[1] != at[0] + kTail) value = hash_pair(value, at[1]);  // overwritten in part
  for (int64_t k = 2; k < cells.size; ++k)
    if (at[k] != at[0] + static_cast<uint64_t>(k) * kTail) value = hash_pair(value, at[k]);
  return value;
}

inline void Interpreter::write(const Cells& cells, int64_t element, uint64_t value) {
  uint64_t* at = cells.at + element * cells.size;
  at[0] = value;
  if (cells.size == 1) return;
  at[1] = value + kTail;
  for (int64_t k = 2; k < cells.size; ++k) at[k] = value + static_cast<uint64_t>(k) * kTail;
}

inline int Interpreter::copies_of(UnitId unit, int64_t element) const {
  return copies_[static_cast<size_t>(unit)][static_cast<size_t>(element)];
}

Interpreter::Interpreter(const ModelDescription& model, const Partition& partition,
                         std::vector<StepProgram> steps, const RankMesh& mesh)
    : model_(model), partition_(partition), tensor_ranks_(mesh.group_size(kLayerAxes)) {
  require(static_cast<int>(steps.size()) == mesh.world_size(), "there is a program for each rank");
  for (size_t r = 0; r < steps.size(); ++r) {
    SymbolicRank rank;
    rank.step = std::move(steps[r]);
    rank.tensor_rank = mesh.place_on(static_cast<int>(r), kLayerAxes);
    rank.batch_part = static_cast<uint64_t>(mesh.place_on(static_cast<int>(r), kGradientAxes));
    const Program& program = rank.step.program;
    for (const Buffer& buffer : program.buffers)
      rank.persistent.emplace_back(
          buffer.persistent_kind ? static_cast<size_t>(buffer.bytes / 2) : 0, 0);
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      const Buffer& buffer = program.buffers[b];
      if (!buffer.persistent_kind) continue;
      const Cells all = cells(rank, {static_cast<BufferId>(b), 0, buffer.bytes});
      for (int64_t e = 0; e < all.count; ++e) write(all, e, 0);
    }
    for (size_t a = 0; a < kArenaCount; ++a)
      rank.arenas[a].resize(static_cast<size_t>(program.arena_bytes[a] / 2 + 1));
    ranks_.push_back(std::move(rank));
  }
  for (const Unit& unit : partition.units) {
    std::vector<int> copies(static_cast<size_t>(unit.padded_numel), 0);
    for (const TensorSlice& slice : unit.slices)
      std::fill_n(copies.begin() + slice.position_in_unit, slice.extent,
                  model.tensor(slice.tensor).copies);
    copies_.push_back(std::move(copies));
  }
  std::vector<const Program*> programs;
  for (const SymbolicRank& rank : ranks_) programs.push_back(&rank.step.program);
  world_ = world_of_all(programs);
  for (const Program* program : programs) schedules_.push_back(make_lane_schedule(*program));
  walk_.emplace(world_, schedules_);
}

// Memory.

template <class Rank>
auto Interpreter::find_cells(Rank& rank, const BufferRange& range, DType dtype) {
  const Buffer& buffer = rank.step.program.at(range.buffer);
  const bool is_persistent = buffer.persistent_kind.has_value();
  auto& memory = is_persistent ? rank.persistent[static_cast<size_t>(range.buffer)]
                               : rank.arenas[static_cast<size_t>(arena_of(buffer))];
  const int64_t offset = is_persistent ? range.offset : buffer.arena_offset + range.offset;
  const int64_t size = std::max<int64_t>(1, dtype_bytes(dtype) / 2);
  auto* const at = memory.data() + offset / 2;
  return RangeSymbols<std::remove_pointer_t<decltype(memory.data())>>{
      at, size, divide_up(range.bytes / 2, size)};
}

Interpreter::Cells Interpreter::cells(SymbolicRank& rank, const BufferRange& range, DType dtype) {
  return find_cells(rank, range, dtype);
}

Interpreter::Cells Interpreter::cells(SymbolicRank& rank, const BufferRange& range) {
  return find_cells(rank, range, rank.step.program.at(range.buffer).format.dtype);
}

Interpreter::ConstCells Interpreter::cells(const SymbolicRank& rank, const BufferRange& range) {
  return find_cells(rank, range, rank.step.program.at(range.buffer).format.dtype);
}

namespace {

/// The number of 1-byte codes that share a cell, which stands for two bytes.
constexpr int64_t kCodesInCell = 2;

/// Returns the number of elements of a state that one element of Cells stands for.
int64_t elements_of_cell(const Program& program, const UnitStatePiece& piece) {
  const Buffer& buffer = program.at(piece.range.buffer);
  return buffer.format.dtype == DType::kU8 && !buffer.format.quantized ? kCodesInCell : piece.block;
}

}  // namespace

void Interpreter::load() {
  for (SymbolicRank& rank : ranks_) {
    for (const UnitStatePiece& piece : rank.step.pieces) {
      if (piece.straddling_tensor >= 0) continue;  // stays 0, like all persistent memory at first
      const Cells to = cells(rank, piece.range);
      const int64_t span = elements_of_cell(rank.step.program, piece);
      require(to.count == divide_up(piece.end - piece.begin, span),
              "a piece is as long as its range");
      for (int64_t e = 0; e < to.count; ++e) {
        const int64_t element = piece.begin + e * span;
        const int copies = copies_of(piece.unit, element);
        if (piece.state >= 0 || copies == 0) {
          write(to, e, 0);
          continue;
        }
        // Tensor-parallel ranks with the same part of a tensor get the same values.
        const auto part = static_cast<uint64_t>(rank.tensor_rank / copies);
        write(to, e,
              hash_pair(hash_pair(static_cast<uint64_t>(piece.unit), part),
                        static_cast<uint64_t>(element)));
      }
    }
  }
}

/// CollectedState holds one state of all units, as the ranks hold it.
struct Interpreter::CollectedState {
  /// The values by tensor-parallel rank and unit, then by element, and whether any rank holds each.
  std::vector<std::vector<uint64_t>> values;
  std::vector<std::vector<char>> held;
  /// The units that have this state: either all ranks that hold a unit have it, or none has.
  std::set<UnitId> kept;
  /// The scales of tensors that straddle blocks.
  std::map<TensorId, std::vector<uint64_t>> scales;
};

std::vector<std::vector<uint64_t>> Interpreter::collect_state(int32_t kind,
                                                              std::string& fault) const {
  CollectedState state;
  for (int t = 0; t < tensor_ranks_; ++t)
    for (const Unit& unit : partition_.units) {
      state.values.emplace_back(static_cast<size_t>(unit.padded_numel), 0);
      state.held.emplace_back(static_cast<size_t>(unit.padded_numel), 0);
    }
  for (size_t r = 0; r < ranks_.size(); ++r)
    for (const UnitStatePiece& piece : ranks_[r].step.pieces) {
      // A working copy must hold the same values as the parameters from which it is made.
      const bool same = piece.state == UnitStatePiece::kWorking && kind == UnitStatePiece::kParam;
      if (piece.state == kind || same) collect_piece(r, piece, kind, state, fault);
    }
  check_all_held(kind, state, fault);
  compare_copies(state.values, fault);
  for (auto& [tensor, numbers] : state.scales) state.values.push_back(std::move(numbers));
  return std::move(state.values);
}

/// Adds a rank's piece of the state `kind`, and checks that ranks before it hold the same values.
void Interpreter::collect_piece(size_t r, const UnitStatePiece& piece, int32_t kind,
                                CollectedState& state, std::string& fault) const {
  const SymbolicRank& rank = ranks_[r];
  const ConstCells from = cells(rank, piece.range);
  if (piece.straddling_tensor >= 0) return compare_scales(from, piece, fault, state.scales);
  state.kept.insert(piece.unit);
  const auto unit = static_cast<size_t>(rank.tensor_rank) * partition_.units.size() +
                    static_cast<size_t>(piece.unit);
  std::vector<uint64_t>& values = state.values[unit];
  std::vector<char>& held = state.held[unit];
  const int64_t span = elements_of_cell(rank.step.program, piece);
  for (int64_t e = 0; e < from.count; ++e) {
    const auto at = static_cast<size_t>(piece.begin + e * span);
    if (copies_of(piece.unit, static_cast<int64_t>(at)) == 0) continue;
    const uint64_t value = read(from, e);
    if (held[at] != 0 && values[at] != value && fault.empty())
      fault = cat("rank ", r, " holds another element ", at, " of state ", kind, " of unit ",
                  piece.unit, " than a rank before it");
    values[at] = value;
    std::fill_n(held.begin() + static_cast<std::ptrdiff_t>(at),
                std::min(static_cast<size_t>(span), held.size() - at), 1);
  }
}

/// Checks that some rank holds each element of the state `kind`, in units that have this state.
void Interpreter::check_all_held(int32_t kind, const CollectedState& state,
                                 std::string& fault) const {
  for (size_t i = 0; i < state.held.size(); ++i) {
    const auto unit = static_cast<UnitId>(i % partition_.units.size());
    for (size_t e = 0; e < state.held[i].size(); ++e)
      if (copies_of(unit, static_cast<int64_t>(e)) != 0 && state.held[i][e] == 0 &&
          fault.empty() && (kind < 0 || state.kept.contains(unit)))
        fault = cat("no rank holds element ", e, " of state ", kind, " of unit ", unit);
  }
}

/// Checks that all ranks have equal scales of a tensor that straddles blocks.
void Interpreter::compare_scales(const ConstCells& scales, const UnitStatePiece& piece,
                                 std::string& fault,
                                 std::map<TensorId, std::vector<uint64_t>>& known) {
  std::vector<uint64_t> own;
  for (int64_t b = 0; b < scales.count; ++b) own.push_back(read(scales, b));
  const auto [before, added] = known.try_emplace(piece.straddling_tensor, own);
  if (!added && before->second != own && fault.empty())
    fault =
        cat("a rank holds other scales of tensor ", piece.straddling_tensor, " than one before it");
}

/// Checks that tensor-parallel ranks with the same part of a tensor have equal values of its
/// states.
void Interpreter::compare_copies(const std::vector<std::vector<uint64_t>>& values,
                                 std::string& fault) const {
  const size_t units = partition_.units.size();
  for (size_t i = units; i < values.size(); ++i)
    for (size_t e = 0; e < values[i].size(); ++e) {
      const auto copies = static_cast<size_t>(copies_[i % units][e]);
      if (copies < 2) continue;
      const size_t first = i / units / copies * copies;
      if (values[i][e] != values[first * units + i % units][e] && fault.empty())
        fault = cat("tensor rank ", i / units, " holds another element ", e, " of unit ", i % units,
                    " than tensor rank ", first, ", which has the same");
    }
}

std::vector<uint64_t> Interpreter::collect_loss(int r) const {
  const SymbolicRank& rank = ranks_[static_cast<size_t>(r)];
  const Program& program = rank.step.program;
  const BufferId loss = find_persistent_buffer(program, PersistentKind::kLoss);
  require(loss >= 0, "a step has a loss");
  const ConstCells from = cells(rank, program.full_range(loss));
  std::vector<uint64_t> values;
  for (int64_t e = 0; e < from.count; ++e) values.push_back(read(from, e));
  return values;
}

// Lanes.

std::string Interpreter::run(std::mt19937_64& random, bool finite) {
  fault_.clear();
  ++step_;
  for (SymbolicRank& rank : ranks_) {
    for (auto& arena : rank.arenas) fill_with_garbage(arena, random);
    scramble_persistent(rank, random);
  }
  // Each lane has a random priority: a lane of high priority runs whenever it can, a lane of low
  // priority only if no other lane can.
  std::vector<std::vector<uint64_t>> priority;
  for (const SymbolicRank& rank : ranks_)
    for (auto& lanes = priority.emplace_back(static_cast<size_t>(lane_count(rank.step.program)));
         uint64_t & value : lanes)
      value = random() % 1000;
  const auto priority_of = [&](Walk::LaneHead lane_head) {
    return priority[static_cast<size_t>(lane_head.rank)][static_cast<size_t>(lane_head.lane)];
  };
  const uint64_t random_share = random() % 3;  // of 4 choices: how many ignore the priorities
  walk_->begin(finite);
  while (!walk_->has_fault() && !walk_->ready().empty()) {
    const std::vector<Walk::LaneHead>& ready = walk_->ready();
    auto chosen = std::max_element(ready.begin(), ready.end(),
                                   [&](auto a, auto b) { return priority_of(a) < priority_of(b); });
    if (random() % 4 < random_share)
      chosen = ready.begin() + static_cast<std::ptrdiff_t>(random() % ready.size());
    execute(*chosen);
    if (!fault_.empty()) return fault_;
    walk_->finish(static_cast<size_t>(chosen - ready.begin()));
  }
  return walk_->fault_text();
}

/// Overwrites all persistent memory that a step may not rely on when it begins (all except
/// Program::initialized_ranges) with pseudo-random values.
void Interpreter::scramble_persistent(SymbolicRank& rank, std::mt19937_64& random) {
  const Program& program = rank.step.program;
  std::vector<std::vector<uint64_t>> kept = rank.persistent;
  for (auto& cells : rank.persistent) fill_with_garbage(cells, random);
  for (const BufferRange& range : program.initialized_ranges) {
    const auto buffer = static_cast<size_t>(range.buffer);
    std::copy_n(kept[buffer].begin() + range.offset / 2, range.bytes / 2,
                rank.persistent[buffer].begin() + range.offset / 2);
  }
}

std::string Interpreter::instr_text(const SymbolicRank& rank, const Instr& instr) const {
  return cat("instruction ", &instr - rank.step.program.instrs.data(), " (", instr_label(instr),
             ")");
}

void Interpreter::fail(const std::string& fault) {
  if (fault_.empty()) fault_ = fault;
}

void Interpreter::execute(Walk::LaneHead lane_head) {
  const Instr& instr = walk_->instr(lane_head);
  const std::span<const int32_t> members = walk_->joint_members(lane_head);
  if (!walk_->runs_in_step(lane_head)) return;
  if (!instr.communicates()) return run_instr(static_cast<size_t>(lane_head.rank), instr);
  if (instr.is_transfer()) return run_transfer(members, lane_head);
  if (instr.kind == InstrKind::kCountedAllToAll) return run_counted_all_to_all(members, lane_head);
  const bool moves = instr.kind == InstrKind::kAllToAll || instr.kind == InstrKind::kShift;
  for (size_t i = 0; i < instr.writes.size(); ++i)
    moves ? move_blocks(members, lane_head, i) : run_reduction_or_gather(members, lane_head, i);
}

// Instructions.

void Interpreter::run_transfer(std::span<const int32_t> members, Walk::LaneHead lane_head) {
  const auto with = [&](InstrKind kind) {
    for (const int32_t member : members)
      if (walk_->instr(walk_->lane_head_of_member(member, lane_head)).kind == kind) return member;
    return int32_t{-1};
  };
  const int32_t sender = with(InstrKind::kSend);
  const int32_t receiver = with(InstrKind::kReceive);
  if (sender < 0 || receiver < 0) return fail("a send has no matching receive");
  const auto cells_of = [&](int32_t member) {
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(member, lane_head));
    const BufferRange& range = member == sender ? instr.reads[0] : instr.writes[0];
    return cells(ranks_[static_cast<size_t>(member)], range, instr.communication().dtype);
  };
  const Cells from = cells_of(sender);
  const Cells to = cells_of(receiver);
  if (from.count != to.count)
    return fail(cat(from.count, " elements are sent, ", to.count, " received"));
  for (int64_t e = 0; e < to.count; ++e) write(to, e, read(from, e));
}

void Interpreter::run_reduction_or_gather(std::span<const int32_t> members,
                                          Walk::LaneHead lane_head, size_t index) {
  const InstrKind kind = walk_->instr(lane_head).kind;
  const bool is_all_gather = kind == InstrKind::kAllGather;
  const bool is_reduce_scatter = kind == InstrKind::kReduceScatter;
  // `whole` holds the parts of all members one after another, or for each element their sum or
  // maximum.
  std::vector<uint64_t> whole;
  int64_t total = 0;
  const auto n = static_cast<int64_t>(members.size());
  for (int64_t m = 0; m < n; ++m) {
    const int32_t member = members[static_cast<size_t>(m)];
    const auto r = static_cast<size_t>(member);
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(member, lane_head));
    const Program& program = ranks_[r].step.program;
    for (const BufferRange& range : {instr.reads[index], instr.writes[index]})
      if (program.at(range.buffer).format.dtype != instr.communication().dtype &&
          program.at(range.buffer).format.dtype != DType::kU8)
        fail(cat("rank ", r, ": ", instr_text(ranks_[r], instr), " takes ",
                 program.at(range.buffer).name, " for ", dtype_name(instr.communication().dtype)));
    const Cells from = cells(ranks_[r], instr.reads[index], instr.communication().dtype);
    if (m == 0) {
      total = from.count;
      whole.resize(static_cast<size_t>(is_all_gather ? n * total : total));
    }
    if (from.count != total)
      return fail(cat(instr_text(ranks_[r], instr), " sends ", from.count,
                      " elements, another rank ", total));
    uint64_t* const to = whole.data() + (is_all_gather ? m * total : 0);
    for (int64_t e = 0; e < total; ++e)
      to[e] = instr.communication().is_max ? std::max(to[e], read(from, e)) : to[e] + read(from, e);
  }
  for (int64_t m = 0; m < n; ++m) {
    const int32_t member = members[static_cast<size_t>(m)];
    SymbolicRank& rank = ranks_[static_cast<size_t>(member)];
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(member, lane_head));
    const Cells to = cells(rank, instr.writes[index], instr.communication().dtype);
    if (to.count != (is_all_gather       ? total * n
                     : is_reduce_scatter ? total / n
                                         : total) ||
        (is_reduce_scatter && total % n != 0))
      return fail(cat(instr_text(rank, instr), " moves ", total, " elements from each of ", n,
                      " ranks into ", to.count));
    const uint64_t* const from = whole.data() + (is_reduce_scatter ? m * to.count : 0);
    for (int64_t e = 0; e < to.count; ++e) write(to, e, from[e]);
  }
}

/// Moves the blocks of a shift or an all-to-all to their receivers. In a shift each rank has one
/// block.
void Interpreter::move_blocks(std::span<const int32_t> members, Walk::LaneHead lane_head,
                              size_t index) {
  const auto n = static_cast<int64_t>(members.size());
  std::vector<std::vector<uint64_t>> sent;
  for (const int32_t member : members) {
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(member, lane_head));
    const Cells from =
        cells(ranks_[static_cast<size_t>(member)], instr.reads[index], instr.communication().dtype);
    std::vector<uint64_t>& values = sent.emplace_back();
    for (int64_t e = 0; e < from.count; ++e) values.push_back(read(from, e));
  }
  for (int64_t m = 0; m < n; ++m) {
    SymbolicRank& rank = ranks_[static_cast<size_t>(members[static_cast<size_t>(m)])];
    const Instr& instr =
        walk_->instr(walk_->lane_head_of_member(members[static_cast<size_t>(m)], lane_head));
    const bool is_shift = instr.kind == InstrKind::kShift;
    const Cells to = cells(rank, instr.writes[index], instr.communication().dtype);
    const int64_t block = is_shift ? to.count : to.count / n;
    for (int64_t e = 0; e < to.count; ++e) {
      const int64_t sender = is_shift ? (m + n - instr.communication().shift % n) % n : e / block;
      const std::vector<uint64_t>& values = sent[static_cast<size_t>(sender)];
      const int64_t at = is_shift ? e : m * block + e % block;
      if (static_cast<int64_t>(values.size()) != to.count || block * (is_shift ? 1 : n) != to.count)
        return fail(cat(instr_text(rank, instr), " moves ", values.size(),
                        " elements from each of ", n, " ranks into ", to.count));
      write(to, e, values[static_cast<size_t>(at)]);
    }
  }
}

/// Runs a kCountedAllToAll. A symbolic count does not say how many rows it stands for, so each
/// rank's result is a hash of everything that all ranks send.
void Interpreter::run_counted_all_to_all(std::span<const int32_t> members,
                                         Walk::LaneHead lane_head) {
  uint64_t all = members.size();
  for (const int32_t member : members) {
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(member, lane_head));
    for (const auto& [range, dtype] : {std::pair(instr.reads[0], instr.communication().dtype),
                                       std::pair(instr.reads[1], DType::kI32)}) {
      const Cells from = cells(ranks_[static_cast<size_t>(member)], range, dtype);
      for (int64_t e = 0; e < from.count; ++e) all = hash_pair(all, read(from, e));
    }
  }
  for (size_t m = 0; m < members.size(); ++m) {
    const Instr& instr = walk_->instr(walk_->lane_head_of_member(members[m], lane_head));
    for (const auto& [range, dtype] : {std::pair(instr.writes[0], instr.communication().dtype),
                                       std::pair(instr.writes[1], DType::kI32)}) {
      const Cells to = cells(ranks_[static_cast<size_t>(members[m])], range, dtype);
      for (int64_t e = 0; e < to.count; ++e)
        write(to, e, hash_pair(hash_pair(all, m), static_cast<uint64_t>(e)));
    }
  }
}

void Interpreter::run_instr(size_t r, const Instr& instr) {
  SymbolicRank& rank = ranks_[r];
  switch (instr.kind) {
    case InstrKind::kLoadBatch:
      return load_batch(rank, instr);
    case InstrKind::kClear:
    case InstrKind::kBegin:
      for (const BufferRange& range : instr.writes) {
        const Cells to = cells(rank, range);
        for (int64_t e = 0; e < to.count; ++e) write(to, e, 0);
      }
      if (instr.kind != InstrKind::kBegin) return;
      if (cells(rank, instr.writes[0]).count <= kLossSums)
        return fail(cat(instr_text(rank, instr), " has no loss"));
      // The first slot after the sums of the loss buffer is a flag, which the caller sets. Here
      // only the first stage sets it (1), so the sum does not depend on the number of stages.
      return write(cells(rank, instr.writes[0]), kLossSums,
                   rank.step.program.stage.index == 0 ? 1 : 0);
    case InstrKind::kForward:
    case InstrKind::kBackward:
    case InstrKind::kInputGrad:
    case InstrKind::kWeightGrad:
      return run_ops(rank, instr);
    case InstrKind::kCopy:
    case InstrKind::kAccumulate:
      return run_copy(rank, instr);
    case InstrKind::kGradientNorm:
      return run_norm(rank, instr);
    case InstrKind::kDecide:
      return run_decide(rank, instr);
    case InstrKind::kComputeScales:
    case InstrKind::kUpdate:
      return update_or_compute_scales(rank, instr);
#define FTRUN_STEP_COLLECTIVE(kind, name) case InstrKind::kind:
#define FTRUN_OTHER_COLLECTIVE(kind, name)
#include "base/collectives.inc"
      // Collectives are run for all members of their group at once.
      return fail(cat(instr_text(rank, instr), " is run for one rank alone"));
  }
}

void Interpreter::load_batch(SymbolicRank& rank, const Instr& instr) {
  for (size_t port = 0; port < instr.writes.size(); ++port) {
    const Cells to = cells(rank, instr.writes[port], DType::kI32);
    const uint64_t seed = hash_pair(hash_pair(step_, rank.batch_part),
                                    hash_pair(static_cast<uint64_t>(instr.micro_batch), port));
    for (int64_t e = 0; e < to.count; ++e) write(to, e, hash_pair(seed, static_cast<uint64_t>(e)));
  }
}

namespace {

/// Returns whether operations add to the value (a gradient of a parameter, or the loss). Such a
/// value is not hashed as an input.
bool is_sum(const Value& value) {
  return value.role == ValueRole::kParamGrad || value.port == Port::kLoss;
}

/// Finds the first value of an operation that has no storage; -1 if all have.
ValueId find_unbound_value(const Op& op, const std::map<ValueId, BufferRange>& ranges) {
  std::vector<ValueId> all = op.in;
  all.insert(all.end(), op.out.begin(), op.out.end());
  if (op.workspace >= 0) all.push_back(op.workspace);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](ValueId id) { return !ranges.contains(id); });
  return found == all.end() ? -1 : *found;
}

}  // namespace

void Interpreter::run_ops(SymbolicRank& rank, const Instr& instr) {
  const LayerGraph& graph = model_.graphs[static_cast<size_t>(instr.ops().graph)];
  if (!has_valid_ops(graph, instr))
    return fail(cat(instr_text(rank, instr), " is not in its list"));
  const std::span<const Op> ops = ops_of(graph, instr);
  std::map<ValueId, BufferRange> ranges;
  for (const Binding& binding : instr.ops().bindings) ranges[binding.value] = binding.range;
  for (const Op& op : ops) {
    if (is_collective(op.kind))
      return fail(
          cat(instr_text(rank, instr), " runs ", op_name(op.kind), ", which no kernel does"));
    if (const ValueId id = find_unbound_value(op, ranges); id >= 0)
      return fail(cat(instr_text(rank, instr), " has no buffer for ", graph.at(id).name));
  }
  const auto at = [&](ValueId id) {
    return cells(rank, ranges.at(id), graph.at(id).stored_dtype());
  };
  for (const Op& op : ops) {
    uint64_t hash = hash_pair(static_cast<uint64_t>(op.kind), op.in.size());
    for (const ValueId id : op.in) {
      if (is_sum(graph.at(id))) continue;
      const Cells from = at(id);
      // The hashes of elements are added instead of chained, so that the CPU can compute several at
      // the same time.
      uint64_t sum = 0;
      for (int64_t e = 0; e < from.count; ++e)
        sum += hash_pair(read(from, e), static_cast<uint64_t>(e));
      hash = hash_pair(hash, sum);
    }
    for (size_t o = 0; o < op.out.size(); ++o) {
      const Value& value = graph.at(op.out[o]);
      const bool known = std::find(op.in.begin(), op.in.end(), op.out[o]) != op.in.end();
      const bool adds =
          is_sum(value) && (instr.ops().accumulate || value.port == Port::kLoss || known);
      const Cells to = at(op.out[o]);
      for (int64_t e = 0; e < to.count; ++e) {
        const uint64_t made = hash_pair(hash_pair(hash, o), static_cast<uint64_t>(e));
        write(to, e, adds ? read(to, e) + made : made);
      }
    }
    if (op.workspace < 0) continue;
    const Cells scratch = at(op.workspace);
    for (int64_t e = 0; e < scratch.count; ++e)
      write(scratch, e, hash_pair(hash, ~static_cast<uint64_t>(e)));
  }
}

void Interpreter::run_copy(SymbolicRank& rank, const Instr& instr) {
  const Cells from = cells(rank, instr.reads[0]);
  const Cells to = cells(rank, instr.writes[0]);
  if (from.count != to.count || instr.reads.size() != 1 || instr.writes.size() != 1)
    return fail(cat(instr_text(rank, instr), " moves ", from.count, " elements into ", to.count));
  for (int64_t e = 0; e < to.count; ++e)
    write(to, e, read(from, e) + (instr.kind == InstrKind::kAccumulate ? read(to, e) : 0));
}

void Interpreter::run_norm(SymbolicRank& rank, const Instr& instr) {
  for (size_t i = 0; i < instr.reads.size(); ++i) {
    const Cells from = cells(rank, instr.reads[i]);
    uint64_t sum = 0;
    for (int64_t e = 0; e < from.count; ++e) sum += read(from, e) * read(from, e);
    write(cells(rank, instr.writes[i]), 0, sum);
  }
}

void Interpreter::run_decide(SymbolicRank& rank, const Instr& instr) {
  const Cells norm = cells(rank, instr.reads[0]);
  uint64_t sum = 0;
  for (int64_t e = 0; e < norm.count; ++e) sum += read(norm, e);
  rank.scale = sum;
  const Cells loss = cells(rank, instr.reads[1]);
  for (int64_t e = 0; e < loss.count; ++e) rank.scale = hash_pair(rank.scale, read(loss, e));
}

/// Calls `body(block, first, last)` for each block of a tensor that contains elements of an update;
/// [first, last) are the elements of the update in the block.
template <class Body>
void for_blocks(const BlockMap& map, int64_t count, Body body) {
  if (count == 0) return;
  const int64_t last = tensor_element(map, count - 1) / kTensorBlock;
  for (int64_t block = tensor_element(map, 0) / kTensorBlock; block <= last; ++block) {
    const int64_t begin = range_element(map, block * kTensorBlock, count),
                  end = range_element(map, (block + 1) * kTensorBlock, count);
    if (begin < end) body(block, begin, end);
  }
}

/// Updates states that are codes. The scale of a block is the maximum over its elements, and each
/// code depends on the scale. Two codes share a cell. A kComputeScales only computes the scales of
/// this rank's elements.
void Interpreter::update_codes(SymbolicRank& rank, const Instr& instr,
                               const UpdateOperands& operands) {
  const Program& program = rank.step.program;
  const bool computes_scales = instr.kind == InstrKind::kComputeScales;
  const Cells gradient = cells(rank, operands.gradient), weights = cells(rank, operands.weights);
  const size_t states = operands.states.size();
  for (size_t s = 0; s < 1 + states; ++s) {
    const BufferRange& range = s == 0 ? operands.weights : operands.states[s - 1];
    if (program.at(range.buffer).format.bytes(gradient.count) != range.bytes)
      return fail(cat(instr_text(rank, instr), " updates ", range.bytes, " bytes with ",
                      gradient.count, " elements"));
  }
  std::vector<uint64_t> made(static_cast<size_t>(gradient.count));
  for (int64_t e = 0; e < gradient.count; ++e)
    made[static_cast<size_t>(e)] =
        hash_pair(hash_pair(read(weights, e), hash_pair(read(gradient, e), rank.scale)),
                  static_cast<uint64_t>(instr.update().first_element + e));
  const bool straddles = instr.update().blocks.has_value();
  for (size_t s = 0; s < states; ++s) {
    const Cells codes = cells(rank, operands.states[s]), scales = cells(rank, operands.scales[s]);
    const Cells next = straddles ? cells(rank, operands.new_scales[s]) : scales;
    for_blocks(instr.update().blocks.value_or(BlockMap{}), gradient.count,
               [&](int64_t block, int64_t first, int64_t last) {
                 if (block >= scales.count || block >= next.count)
                   return fail(cat(instr_text(rank, instr), " has no scale ", block));
                 std::vector<uint64_t> numbers;
                 uint64_t scale = computes_scales ? read(next, block) : 0;
                 for (int64_t e = first; e < last; ++e) {
                   const uint64_t before =
                       hash_pair(read(codes, e / kCodesInCell), read(scales, block));
                   made[static_cast<size_t>(e)] = hash_pair(made[static_cast<size_t>(e)], before);
                   numbers.push_back(
                       hash_pair(hash_pair(before, hash_pair(read(gradient, e), rank.scale)), s));
                   scale = std::max(scale, numbers.back());
                 }
                 if (straddles && !computes_scales) scale = read(next, block);
                 if (computes_scales || !straddles) write(next, block, scale);
                 if (computes_scales) return;
                 for (int64_t e = first; e < last; e += kCodesInCell) {
                   uint64_t code = scale;
                   for (int64_t k = e; k < std::min(e + kCodesInCell, last); ++k)
                     code = hash_pair(code, numbers[static_cast<size_t>(k - first)]);
                   write(codes, e / kCodesInCell, code);
                 }
               });
  }
  for (int64_t e = 0; !computes_scales && e < gradient.count; ++e) {
    const uint64_t weight = hash_pair(made[static_cast<size_t>(e)], instr.update().decay ? 1 : 2);
    write(weights, e, weight);
    if (operands.working_copy) write(cells(rank, *operands.working_copy), e, weight);
  }
}

void Interpreter::update_numbers(SymbolicRank& rank, const Instr& instr,
                                 const UpdateOperands& operands) {
  const Cells gradient = cells(rank, operands.gradient);
  std::vector<Cells> written;
  for (const BufferRange& range : instr.writes) {
    written.push_back(cells(rank, range));
    if (written.back().count != gradient.count)
      return fail(cat(instr_text(rank, instr), " updates ", written.back().count, " elements with ",
                      gradient.count));
  }
  for (int64_t e = 0; e < gradient.count; ++e) {
    const uint64_t g = hash_pair(read(gradient, e), rank.scale);
    uint64_t weight = hash_pair(hash_pair(read(written[0], e), g),
                                static_cast<uint64_t>(instr.update().first_element + e));
    for (size_t s = 1; s <= operands.states.size(); ++s) {
      weight = hash_pair(weight, read(written[s], e));
      write(written[s], e, hash_pair(hash_pair(read(written[s], e), g), s));
    }
    weight = hash_pair(weight, instr.update().decay ? 1 : 2);
    write(written[0], e, weight);
    if (operands.working_copy) write(written.back(), e, weight);
  }
}

void Interpreter::update_or_compute_scales(SymbolicRank& rank, const Instr& instr) {
  const std::optional<UpdateOperands> operands = decode_update_operands(rank.step.program, instr);
  if (!operands) return fail(cat(instr_text(rank, instr), " has a wrong number of ranges"));
  if (operands->scales.empty()) return update_numbers(rank, instr, *operands);
  update_codes(rank, instr, *operands);
}

}  // namespace ftrun

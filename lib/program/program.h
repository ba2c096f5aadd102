#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/enum_names.h"
#include "cluster/rank_mesh.h"
#include "graph/op.h"
#include "optimizers/block_map.h"
#include "partition/sharding.h"
#include "program/instr_kind.h"
#include "program/storage_format.h"

namespace ftrun {

using BufferId = int32_t;
using InstrId = int32_t;

/// Tier is the memory that holds a buffer. On CPU ranks the device tier is ftrun's own accounting
/// of main memory.
enum class Tier : uint8_t { kDevice, kHost, kDisk };

/// Category is the kind of data that a buffer holds, for the memory table.
enum class Category : uint8_t {
  kParameters,   // what forward and backward read
  kGradients,    // what the update reads
  kOptimizer,    // master weights and moments
  kActivations,  // batch, values of the layers, scratch
  kBuckets,      // gathered parameters, gradients that are being reduced
  kStaging,      // copies of data that is stored in another tier
  kSums,         // sums of a step: loss, counted tokens, flags of ranks, norm
  kSnapshot,     // copy of the state from which a checkpoint is written while training continues
};
inline constexpr size_t kCategoryCount = enumerator_count<Category>();

/// The maximum number of states of an optimizer that can have their own persistent buffer.
inline constexpr int32_t kMaxStateBuffers = 16;

/// PersistentKind is the kind of a buffer that lives from one step to the next. The programs of a
/// rank share the buffers of the same kind in the same tier; a program has at most one of each.
enum class PersistentKind : int32_t {
  kParameters,
  kQuantizedParameters,
  kFp32Parameters,
  kSecondaryShards,
  kQuantizedSecondaryShards,
  kMaster,
  kLoss,
  kGradientNorm,
  kSnapshot,
  /// The first state of the optimizer; state i is kOptimizerStates + i.
  kOptimizerStates,
  /// The scales of tensors that straddle blocks (program/state_spec.h).
  kStraddlingScales = kOptimizerStates + kMaxStateBuffers,
};

struct Buffer {
  std::string name;
  Tier tier = Tier::kDevice;
  Category category = Category::kActivations;
  int64_t bytes = 0;
  /// The kind of persistent state. A buffer without a value lives only within a step, and shares
  /// memory of an arena with buffers whose lifetimes do not overlap with its own.
  std::optional<PersistentKind> persistent_kind;
  /// Says whether the buffer holds the result of a step: it is read when the program has ended, so
  /// its memory is not reused before.
  bool is_result = false;
  /// Says whether the buffer is allocated through the communicator, so that ranks of the same
  /// machine can read it.
  bool peer_visible = false;
  /// Says whether the buffer is private, but lies in a gap of the arena that peers read; set by
  /// assign_arena_offsets.
  bool in_gap = false;
  /// Byte offset in its arena, set by assign_arena_offsets; -1 for persistent buffers.
  int64_t arena_offset = -1;
  /// The format of the buffer's elements; U8 if it holds values of several dtypes.
  StorageFormat format{.dtype = DType::kU8};
  /// Byte offset of the second copy of saved state, in the disk's snapshot buffer; -1: none. While
  /// a checkpoint is written from one copy, updates write the other.
  int64_t shadow_offset = -1;
};

/// Arena names a memory block that buffers share if they are not persistent: private memory of the
/// device, memory of the device that peers can read, or memory of the host.
enum class Arena : uint8_t { kDevice, kShared, kHost };
inline constexpr size_t kArenaCount = enumerator_count<Arena>();
using ArenaBytes = std::array<int64_t, kArenaCount>;
Arena arena_of(const Buffer& buffer);
/// Returns whether peers can read the buffer in place. It may be persistent or not.
inline bool in_shared_memory(const Buffer& buffer) {
  return buffer.peer_visible || buffer.in_gap;
}

/// BufferRange is the bytes [offset, offset + bytes) of a buffer.
struct BufferRange {
  BufferId buffer = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const BufferRange&) const = default;
};

bool overlaps(const BufferRange& a, const BufferRange& b);
/// Adds a range to a list; if a listed range ends where the new one begins, extends the listed
/// range instead.
void add_range(std::vector<BufferRange>& ranges, const BufferRange& range);

/// GroupId is an index in Program::groups.
using GroupId = int32_t;
inline constexpr GroupId kNoGroup = -1;

/// Lane is a sequence of instructions that run in order. Different lanes run concurrently. On a CPU
/// a lane is a thread (compute: the calling thread), on CUDA a stream. Each group of ranks has its
/// own lane, from kFirstGroup on.
enum class Lane : int32_t { kCompute, kToDevice, kToHost, kDisk, kFirstGroup };

constexpr Lane lane_of(GroupId group) {
  return static_cast<Lane>(static_cast<int>(Lane::kFirstGroup) + group);
}
constexpr bool is_communication(Lane lane) {
  return lane >= Lane::kFirstGroup;
}

/// ProgramGroup is a group over which collectives of a program run: its members, and this rank's
/// place among them.
struct ProgramGroup {
  RankGroup members;
  GroupPlace place;
};

/// Binding is the storage of one value of a layer's graph.
struct Binding {
  ValueId value;
  BufferRange range;
};

// The structs below are the possible types of Instr::detail; each is used by some kinds of
// instructions only.

/// LayerOps is the detail of an instruction that runs operations of a layer: the number of the
/// graph in the model, the operations [first_op, first_op + op_count) of one of its operation
/// lists, none of them a collective, and the storage of their values.
struct LayerOps {
  int32_t graph = -1;
  int32_t first_op = 0;
  int32_t op_count = 0;
  std::vector<Binding> bindings;
  /// Says whether the operations add to the gradients of parameters. False: they are the first to
  /// write these gradients and overwrite them.
  bool accumulate = false;
};

/// Communication is the detail of collectives and transfers. The kind of data decides which members
/// of Instr are set:
/// * a collective within a layer's operation list: `layer` and `micro_batch`
/// * gradients or parameters: `unit`
/// * transfers between stages of a pipeline: `micro_batch`
struct Communication {
  GroupId group = kNoGroup;
  DType dtype = DType::kF32;
  /// Says whether a kAllReduce computes the maximum over the ranks instead of the sum.
  bool is_max = false;
  /// The number of places in its group by which a kShift moves data; the first place follows the
  /// last.
  int32_t shift = 0;
  /// The number of elements in a row of a kCountedAllToAll. Such an exchange reads the rows to send
  /// and writes the received rows, both ordered by rank, each with an I32 count for each rank:
  /// reads = {rows, counts}, writes = {rows, counts}. It writes zeros after the received rows. A
  /// step in which the received rows do not fit fails.
  int64_t row_elements = 1;
};

/// UpdateDetail is the detail of kUpdate and kComputeScales. UpdateOperands
/// (program/update_operands.h) names the ranges that they read and write.
struct UpdateDetail {
  /// Says whether the update applies weight decay.
  bool decay = false;
  /// Says whether the update also writes the working copy of the weights, in the dtype of
  /// computation.
  bool writes_working_copy = false;
  /// Index of the first element among all parameters that a tensor-parallel rank uses. It is the
  /// same for every number of data-parallel ranks. Copies of a tensor have the same index on all
  /// tensor-parallel ranks, so stochastic rounding gives them equal values.
  int64_t first_element = 0;
  /// The blocks of a tensor that straddles blocks; no value for other tensors.
  std::optional<BlockMap> blocks = {};
};

/// GradientNormSlots is the detail of kGradientNorm: the number of ranks that have their own slots
/// in the norm buffer, and this rank's index among them. The rank's slots are those with slot %
/// ranks == index. The sums are added in the order of slots. If `ranks` is 1, all ranks share the
/// slots.
struct GradientNormSlots {
  int32_t ranks = 1;
  int32_t index = 0;
};

/// DiskRequest is the detail of copies on the disk lane. `starts_early` means that the copy, once
/// its waits are done, may start while the previous request of the lane still runs.
struct DiskRequest {
  bool starts_early = false;
};

/// Instr is one instruction of a program: its kind and lane, the instructions that it waits for,
/// and the ranges that it reads and writes.
struct Instr {
  InstrKind kind = InstrKind::kBegin;
  Lane lane = Lane::kCompute;
  /// The instructions that must be done before this one. Passes add the waits that do not follow
  /// from reads and writes; add_waits adds the rest.
  std::vector<InstrId> waits;
  std::vector<BufferRange> reads;
  std::vector<BufferRange> writes;
  /// Says whether the instruction runs only when the step's decision is `finite`.
  bool if_finite = false;
  /// The layer of the model and the micro-batch of the step; -1 where there is none.
  int32_t layer = -1;
  int32_t micro_batch = -1;
  /// The unit whose parameters or gradients the instruction moves; else -1.
  int32_t unit = -1;
  /// Data that only this kind of instruction has; std::monostate for kinds without any.
  std::variant<std::monostate, LayerOps, Communication, GradientNormSlots, UpdateDetail,
               DiskRequest>
      detail;

  bool runs_ops() const { return std::holds_alternative<LayerOps>(detail); }
  const LayerOps& ops() const { return std::get<LayerOps>(detail); }
  LayerOps& ops() { return std::get<LayerOps>(detail); }
  /// Returns whether the instruction runs together with other ranks: a collective, or a transfer
  /// between two ranks.
  bool communicates() const { return std::holds_alternative<Communication>(detail); }
  bool is_collective() const { return communicates() && !is_transfer(); }
  bool is_transfer() const { return kind == InstrKind::kSend || kind == InstrKind::kReceive; }
  /// Returns the ranges of a collective or transfer that have the full size, that of all ranks'
  /// blocks together: what a reduce-scatter or a send reads, and what others write.
  const std::vector<BufferRange>& full_ranges() const {
    return kind == InstrKind::kReduceScatter || kind == InstrKind::kSend ? reads : writes;
  }
  const Communication& communication() const { return std::get<Communication>(detail); }
  Communication& communication() { return std::get<Communication>(detail); }
  /// Returns the instruction's group; kNoGroup where it does not communicate.
  GroupId group() const { return communicates() ? communication().group : kNoGroup; }
  /// Returns the detail of a kUpdate or kComputeScales.
  const UpdateDetail& update() const { return std::get<UpdateDetail>(detail); }
  UpdateDetail& update() { return std::get<UpdateDetail>(detail); }
  bool starts_early() const {
    const auto* disk = std::get_if<DiskRequest>(&detail);
    return disk != nullptr && disk->starts_early;
  }
};

/// Program is the instruction list of one step of one rank, with its buffers. Programs of ranks of
/// one class (sim/rank_classes.h) differ only in the offsets of ranges within buffers and in the
/// members of groups. Ranks of other classes, such as other pipeline stages, run other
/// instructions.
struct Program {
  std::string name;
  std::vector<Buffer> buffers;
  std::vector<Instr> instrs;
  /// Ranges of persistent buffers that hold data when the step begins: parameters and optimizer
  /// state. A step writes all other memory before it reads it.
  std::vector<BufferRange> initialized_ranges;
  /// The groups of the program's collectives, in the order in which communicators are opened. All
  /// programs of a rank have the same list.
  std::vector<ProgramGroup> groups;
  /// The rank's place among the stages of the pipeline.
  GroupPlace stage;
  /// Bytes of each arena; set by assign_arena_offsets.
  ArenaBytes arena_bytes{};

  BufferId add(Buffer buffer) {
    buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(buffers.size()) - 1;
  }
  const Buffer& at(BufferId id) const { return buffers[static_cast<size_t>(id)]; }
  /// Returns all bytes of a buffer.
  BufferRange full_range(BufferId id) const { return {id, 0, at(id).bytes}; }
  const Instr& instr(InstrId id) const { return instrs[static_cast<size_t>(id)]; }
  int64_t bytes_of_arena(Arena which) const { return arena_bytes[static_cast<size_t>(which)]; }
  const ProgramGroup& group(GroupId id) const { return groups[static_cast<size_t>(id)]; }
  /// Returns this rank's place in a group; for kNoGroup, place 0 of 1.
  GroupPlace place_in_group(GroupId id) const {
    return id == kNoGroup ? GroupPlace{} : group(id).place;
  }
};

/// Finds a persistent buffer; -1 where the program has none.
BufferId find_persistent_buffer(const Program& program, PersistentKind which,
                                Tier tier = Tier::kDevice);
/// Finds the result buffer (is_result), at most one in a program; -1 where there is none.
BufferId find_result_buffer(const Program& program);

/// Returns whether two ranges share bytes of memory or of the disk: in one buffer or, once
/// assign_arena_offsets() has run, in one arena.
bool share_bytes(const Program& program, const BufferRange& a, const BufferRange& b);
/// Returns whether one of two instructions writes bytes that the other reads or writes.
bool share_written_bytes(const Program& program, const Instr& a, const Instr& b);

/// Returns the number of lanes of a program: one lane per group, and the four other lanes.
int lane_count(const Program& program);
/// Returns the group that a lane belongs to; null for the other lanes.
const ProgramGroup* group_of_lane(const Program& program, Lane lane);
/// Return whether a lane belongs to a link, and whether it belongs to any group that spans pipeline
/// stages: a link, the group of the first and the last stage, or the group of all ranks.
bool is_link(const Program& program, Lane lane);
bool is_between_stages(const Program& program, Lane lane);

/// Make a collective, on its group's lane, and a copy, on the compute lane within one tier, else on
/// the lane between the two tiers (to device, to host, disk). `unit` is Instr::unit.
Instr make_collective(InstrKind kind, const Communication& communication, const BufferRange& in,
                      const BufferRange& out, int32_t unit = -1);
Instr make_copy(const Program& program, const BufferRange& from, const BufferRange& to,
                int32_t unit = -1);

/// Counts the elements of a range by its buffer's dtype.
int64_t element_count(const Program& program, const BufferRange& range);

/// Returns "compute", "to device", ...; "communication" for the lanes of groups.
std::string_view lane_name(Lane lane);
std::string_view tier_name(Tier tier);
std::string_view category_name(Category category);
/// Returns the category's key in JSON (`ftrun plan --json`, run.json, metrics.jsonl): its name,
/// except that the key of kSums is "buffers".
std::string_view category_key(Category category);

/// Names an instruction in messages and traces: "backward layer 3 mb 0".
std::string instr_label(const Instr& instr);

/// Formats the whole program as `ftrun plan --program` prints it: a line for each instruction, the
/// buffers, and the memory.
std::string program_text(const Program& program);

/// Hashes everything that must be equal on all ranks: the layers that the ranks run, and the
/// collectives with their ranges and dtypes. Ranks compare the hash before the first step.
uint64_t program_hash(const Program& program);

}  // namespace ftrun

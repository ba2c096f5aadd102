#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "graph/layer_graph.h"

namespace ftrun {

using BufferId = int32_t;
using InstrId = int32_t;

/// Where a buffer lies. On CPU ranks the device tier is ftrun's own accounting of main memory.
enum class Tier : uint8_t { kDevice, kHost };

/// What a buffer holds, for the memory account.
enum class Category : uint8_t { kParameters, kGradients, kOptimizer, kActivations, kBuffers };

struct Buffer {
  std::string name;
  Tier tier = Tier::kDevice;
  Category category = Category::kActivations;
  int64_t bytes = 0;
  /// Lives from one step to the next. Other buffers share the arena while their lives do not meet.
  bool persistent = false;
  /// Allocated through the communicator, so that ranks of the same machine can read it.
  bool peer_visible = false;
  /// Byte offset in the arena, set by plan_memory; -1 for persistent buffers.
  int64_t arena_offset = -1;
};

/// Bytes [offset, offset + bytes) of a buffer.
struct Range {
  BufferId buffer = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const Range&) const = default;
};

bool overlaps(const Range& a, const Range& b);

/// A sequence of instructions that runs in order; lanes run beside each other. On CPU a lane is a
/// thread (compute: the calling one), on CUDA a stream.
enum class Lane : uint8_t { kCompute, kCommunication };
inline constexpr int kLaneCount = 2;

enum class InstrKind : uint8_t {
  kLoadBatch,      // the loader's micro-batch into its buffers
  kBegin,          // zeroes writes[0], the loss buffer, and puts this rank's stop vote there
  kForward,        // forward list of a layer
  kBackward,       // backward list of a layer (input and weight gradients)
  kAllReduce,      // sums writes[0] over the ranks of `group`, in place
  kGradientNorm,   // sum of squares of reads[*] into writes[0] (F64)
  kDecide,         // gradient scale and `finite` from the norm and the loss
  kUpdate,         // optimizer over one range of parameters
};

/// Groups of ranks a collective runs over.
enum class CommGroup : uint8_t { kNone, kData };

/// Storage of one value of a layer's graph.
struct Binding {
  ValueId value;
  Range range;
};

struct Instr {
  InstrKind kind = InstrKind::kBegin;
  Lane lane = Lane::kCompute;
  /// Instructions of other lanes that must be done first.
  std::vector<InstrId> waits;
  std::vector<Range> reads;
  std::vector<Range> writes;
  /// Runs only when the step's decision is `finite`.
  bool if_finite = false;
  /// Layer of the model and micro-batch of the step (kLoadBatch, kForward, kBackward); else -1.
  int32_t layer = -1;
  int32_t micro_batch = -1;
  /// Graph of the model and storage of its values (kForward, kBackward).
  int32_t graph = -1;
  std::vector<Binding> bindings;
  /// Parameter gradients are added to (kForward, kBackward); false: the first write of the step.
  bool accumulate = false;
  /// kAllReduce.
  CommGroup group = CommGroup::kNone;
  DType dtype = DType::kF32;
  /// kUpdate: reads = {gradient}, writes = {parameters, state...}; weight decay applies or not.
  bool decay = false;
};

/// The step of every rank of a rank class: same instructions, same sizes.
struct Program {
  std::string name;
  std::vector<Buffer> buffers;
  std::vector<Instr> instrs;
  /// Bytes of the arena that holds all buffers that are not persistent, by tier; set by plan_memory.
  int64_t arena_bytes = 0;

  const Buffer& at(BufferId id) const { return buffers[static_cast<size_t>(id)]; }
  const Instr& instr(InstrId id) const { return instrs[static_cast<size_t>(id)]; }
};

std::string_view instr_name(InstrKind kind);
std::string_view lane_name(Lane lane);
std::string_view category_name(Category category);

/// "backward layer 3 mb 0": how an instruction is called in messages and traces.
std::string instr_label(const Instr& instr);

/// The whole program, a line an instruction, with buffers and memory; what `ftrun plan --program` prints.
std::string program_text(const Program& program);

/// Hash of everything that must be equal on ranks of a class; ranks compare it before the first
/// collective.
uint64_t program_hash(const Program& program);

/// Bytes by category: persistent buffers plus what the arena holds at its fullest moment.
struct MemoryAccount {
  std::vector<std::pair<Category, int64_t>> by_category;
  /// Persistent buffers plus the arena.
  int64_t total = 0;
};
MemoryAccount memory_account(const Program& program);

/// Bytes this rank's collectives move, by the theory of the ring: 2 (n-1)/n of an all-reduce's bytes.
int64_t all_reduce_bytes(const Program& program, int64_t group_size);

}  // namespace ftrun

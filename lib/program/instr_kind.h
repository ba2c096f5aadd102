#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/collective_kind.h"
#include "base/enum_names.h"

namespace ftrun {

/// InstrKind is the closed set of things that an instruction does. Those of base/collectives.inc
/// run over the ranks of `group`:
/// * kAllReduce sums (or takes the maximum of) writes[*], in place
/// * kReduceScatter sums reads[i], one block per rank; writes[i] gets this rank's block
/// * kAllGather: writes[i] gets reads[i] of every rank
/// * kAllToAll: writes[i] gets this rank's block of reads[i] of every rank
/// * kCountedAllToAll is like kAllToAll, for blocks of any number of rows, counted by their sender
/// * kShift: writes[i] gets reads[i] of the rank Communication::shift places before this one
/// * kSend sends reads[0] to the other rank of `group` (a link), which has the kReceive
/// * kReceive receives writes[0] from the other rank of `group`
enum class InstrKind : uint8_t {
  kLoadBatch,   // copies the loader's micro-batch into its buffers
  kClear,       // zeroes its writes: padding, or what is only added to or raised
  kBegin,       // zeroes its writes, then puts the caller's flags in writes[0], the loss buffer
  kForward,     // operations of a layer's forward list
  kBackward,    // operations of a layer's backward list (input and weight gradients)
  kInputGrad,   // only the operations of its input gradients
  kWeightGrad,  // only the operations of its weight gradients
#define FTRUN_STEP_COLLECTIVE(kind, name) kind,
#define FTRUN_OTHER_COLLECTIVE(kind, name)
#include "base/collectives.inc"
  kCopy,           // copies reads[0] to writes[0]; converts the dtype, or copies to another tier
  kAccumulate,     // adds reads[0] to writes[0]
  kGradientNorm,   // writes the sum of squares of reads[i] to writes[i] (one F64 each)
  kDecide,         // asks the caller whether and how to update, by norm (reads[0]), loss (reads[1])
  kComputeScales,  // computes the new scales of 8-bit states of a tensor that straddles blocks
  kUpdate,         // runs the optimizer over one range of parameters
};
inline constexpr size_t kInstrKinds = enumerator_count<InstrKind>();

/// InstrDetail says which type Instr::detail (program/program.h) must have.
enum class InstrDetail : uint8_t {
  kNone,           // std::monostate
  kLayerOps,       // LayerOps
  kCommunication,  // Communication, with a group
  kNormSlots,      // GradientNormSlots
  kUpdate,         // UpdateDetail
  kDisk,           // DiskRequest, or std::monostate
};

/// WorkKind groups kinds of instructions. A chart of lanes draws a group in one color, and kUpdate
/// is the update of predicted and measured step times.
enum class WorkKind : uint8_t {
  kForward,
  kBackward,    // input gradients, with or without weight gradients
  kWeightGrad,  // only gradients of weights
  kUpdate,
  kCommunication,
  kCopy,
  kOther,
};
inline constexpr std::array<WorkKind, 7> kWorkKinds{
    WorkKind::kForward,       WorkKind::kBackward, WorkKind::kWeightGrad, WorkKind::kUpdate,
    WorkKind::kCommunication, WorkKind::kCopy,     WorkKind::kOther};

/// InstrTraits holds what code that runs no instructions knows about a kind.
struct InstrTraits {
  InstrKind kind{};
  std::string_view name;  // in program texts, traces, breakdowns and messages
  InstrDetail detail = InstrDetail::kNone;
  WorkKind work = WorkKind::kOther;
  /// The kind's name in machine files, if its time is that of reading and writing its bytes; ""
  /// for other kinds, and where this time is negligible.
  std::string_view slowdown_key = "";
  /// The number of times that the instruction passes over the bytes that it reads, and over those
  /// that it writes. Bytes that it writes in place are also read.
  int read_passes = 1;
  int write_passes = 1;
};

/// The traits of all kinds, in the order of InstrKind.
inline constexpr InstrTraits kInstrTraits[] = {
    {.kind = InstrKind::kLoadBatch, .name = "load_batch"},
    {.kind = InstrKind::kClear, .name = "clear", .slowdown_key = "clear", .read_passes = 0},
    {.kind = InstrKind::kBegin, .name = "begin"},
    {.kind = InstrKind::kForward,
     .name = "forward",
     .detail = InstrDetail::kLayerOps,
     .work = WorkKind::kForward},
    {.kind = InstrKind::kBackward,
     .name = "backward",
     .detail = InstrDetail::kLayerOps,
     .work = WorkKind::kBackward},
    {.kind = InstrKind::kInputGrad,
     .name = "input_grad",
     .detail = InstrDetail::kLayerOps,
     .work = WorkKind::kBackward},
    {.kind = InstrKind::kWeightGrad,
     .name = "weight_grad",
     .detail = InstrDetail::kLayerOps,
     .work = WorkKind::kWeightGrad},
#define FTRUN_STEP_COLLECTIVE(collective, text) \
  {.kind = InstrKind::collective,               \
   .name = #text,                               \
   .detail = InstrDetail::kCommunication,       \
   .work = WorkKind::kCommunication},
#define FTRUN_OTHER_COLLECTIVE(collective, text)
#include "base/collectives.inc"
    {.kind = InstrKind::kCopy,
     .name = "copy",
     .detail = InstrDetail::kDisk,
     .work = WorkKind::kCopy,
     .slowdown_key = "copy"},
    {.kind = InstrKind::kAccumulate,
     .name = "accumulate",
     .slowdown_key = "accumulate",
     .write_passes = 2},
    {.kind = InstrKind::kGradientNorm,
     .name = "gradient_norm",
     .detail = InstrDetail::kNormSlots,
     .slowdown_key = "gradient_norm",
     .write_passes = 0},
    {.kind = InstrKind::kDecide, .name = "decide"},
    {.kind = InstrKind::kComputeScales,
     .name = "compute_scales",
     .detail = InstrDetail::kUpdate,
     .work = WorkKind::kUpdate,
     .slowdown_key = "update"},
    {.kind = InstrKind::kUpdate,
     .name = "update",
     .detail = InstrDetail::kUpdate,
     .work = WorkKind::kUpdate,
     .slowdown_key = "update",
     .write_passes = 2},
};

/// Returns whether kInstrTraits has one row for each kind, in the order of the enumeration.
consteval bool lists_each_instr_kind() {
  for (size_t i = 0; i < std::size(kInstrTraits); ++i)
    if (static_cast<size_t>(kInstrTraits[i].kind) != i) return false;
  return has_values<InstrKind, std::size(kInstrTraits)>();
}
static_assert(lists_each_instr_kind(), "each kind of instruction has a row in kInstrTraits");

constexpr const InstrTraits& traits_of(InstrKind kind) {
  return kInstrTraits[static_cast<size_t>(kind)];
}

/// Returns the kind's name: "load_batch", "all_reduce", ...
constexpr std::string_view instr_name(InstrKind kind) {
  return traits_of(kind).name;
}

/// Return whether the time of a kind counts as operations of layers, and as the update. Predicted
/// and measured times use the same division.
constexpr bool is_layer_work(InstrKind kind) {
  return traits_of(kind).detail == InstrDetail::kLayerOps;
}
constexpr bool is_update_work(InstrKind kind) {
  return traits_of(kind).work == WorkKind::kUpdate;
}

/// Returns the collective or transfer that instructions of a kind run; they must run one.
CollectiveKind collective_kind(InstrKind kind);
/// Returns the kind of the instructions that run a collective or transfer; a step must have such
/// instructions.
InstrKind instr_kind(CollectiveKind kind);

}  // namespace ftrun

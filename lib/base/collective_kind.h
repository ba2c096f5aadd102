#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ftrun {

/// CollectiveKind is the closed set of ways in which the ranks of a group communicate
/// (base/collectives.inc). Transfers between two ranks are among them. The functions of this header
/// are inline because the NCCL module is linked without this folder's library.
enum class CollectiveKind : uint8_t {
#define FTRUN_STEP_COLLECTIVE(kind, name) kind,
#include "base/collectives.inc"
};

inline constexpr int kCollectiveKinds = 0
#define FTRUN_STEP_COLLECTIVE(kind, name) +1
#include "base/collectives.inc"
    ;

/// Returns a kind's name: "all_reduce", "reduce_scatter", ...
inline std::string_view collective_name(CollectiveKind kind) {
  static constexpr std::string_view kNames[] = {
#define FTRUN_STEP_COLLECTIVE(kind, name) #name,
#include "base/collectives.inc"
  };
  return kNames[static_cast<size_t>(kind)];
}

/// Returns whether `kind` is kSend or kReceive.
constexpr bool is_point_to_point(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

/// Returns whether the ranks exchange blocks without adding them.
constexpr bool is_exchange(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kCountedAllToAll ||
         kind == CollectiveKind::kShift;
}

/// Returns the bytes that a rank sends in a collective among `ranks` ranks: the minimum that an
/// algorithm must transfer. `input_bytes` is the size of what the rank gives: in a reduce-scatter
/// or an all-to-all a block for each rank. A broadcast is counted for its root, a shift for ranks
/// whose block goes to another rank, and a counted all-to-all as if every rank got as many rows.
constexpr int64_t sent_bytes(CollectiveKind kind, int64_t input_bytes, int64_t ranks) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * input_bytes * (ranks - 1) / ranks;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kCountedAllToAll:
      return input_bytes * (ranks - 1) / ranks;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return input_bytes * (ranks - 1);
    case CollectiveKind::kShift:
    case CollectiveKind::kSend:
      return input_bytes;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kReceive:
      break;
  }
  return 0;
}

}  // namespace ftrun

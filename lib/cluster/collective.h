#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace ftrun {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kCountedAllToAll,
  kShift,
  kBroadcast,
  kBarrier,
  kSend,
  kReceive,
};
inline constexpr int kCollectiveKinds = 10;
/// Returns a kind's name: "all_reduce", "reduce_scatter", ...
std::string_view collective_name(CollectiveKind kind);

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

/// CallSite says what a collective is for, as messages name it: "gradient bucket 7". Copied (63
/// characters) when the collective is issued.
struct CallSite {
  std::string_view what = "";
};

/// CollectiveState says how far a rank is in a collective.
enum class CollectiveState : uint8_t { kNone, kEntered, kFinished, kLeft, kAborted };

/// CollectiveRecord says where a rank is in its sequence of collectives. Plain bytes: it travels
/// through shared memory and the store.
struct CollectiveRecord {
  /// Counted from 1 within the communicator; sends and receives count apart, per peer.
  int64_t sequence = 0;
  /// Elements of a block; for a counted all-to-all the most that a rank may send or receive, the
  /// same on all ranks.
  int64_t count = 0;
  /// System clock when the state was entered.
  int64_t unix_ns = 0;
  /// Root, destination or source (rank in the group), or by how many ranks a shift moves; -1 where
  /// there is none.
  int32_t peer = -1;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  CollectiveState state = CollectiveState::kNone;
  char site[64] = {};
};

/// Returns the bytes of a collective's `count` elements. Inline: the NCCL module is linked without
/// this folder's library.
inline int64_t payload_bytes(const CollectiveRecord& record) {
  return record.count * dtype_bytes(record.dtype);
}

/// Describes a collective: "all_reduce #12 (gradient bucket 7, 4194304 x F32)".
std::string describe(const CollectiveRecord& record);
/// Says whether two ranks are in the same collective: all but time, state and call site agree.
bool same_collective(const CollectiveRecord& a, const CollectiveRecord& b);
/// Says whether `kind` is kSend or kReceive.
bool between_two(CollectiveKind kind);

}  // namespace ftrun

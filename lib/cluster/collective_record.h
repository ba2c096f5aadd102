#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/collective_kind.h"
#include "base/dtype.h"

namespace ftrun {

enum class ReduceOp : uint8_t { kSum, kMax };

/// CallSite names the purpose of a collective in messages: "gradient bucket 7". The first 63
/// characters are copied when the collective is issued.
struct CallSite {
  std::string_view what = "";
};

/// CollectiveState describes how far a rank is in a collective.
enum class CollectiveState : uint8_t { kNone, kEntered, kFinished, kLeft, kAborted };

/// CollectiveRecord specifies where a rank is in its sequence of collectives. It is trivially
/// copyable, because it is passed through shared memory and the store.
struct CollectiveRecord {
  /// The number of the collective, from 1 within the communicator; sends and receives are counted
  /// separately for each peer.
  int64_t sequence = 0;
  /// The number of elements of a block; for a counted all-to-all the maximum that a rank may send
  /// or receive, equal on all ranks.
  int64_t count = 0;
  /// The time when the rank entered the state: nanoseconds of the system clock.
  int64_t unix_ns = 0;
  /// The root, destination or source (rank in the group), or the number of ranks by which a shift
  /// moves; -1 if there is none.
  int32_t peer = -1;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  CollectiveState state = CollectiveState::kNone;
  char site[64] = {};
};

/// Returns the bytes of a collective's `count` elements. This function is inline because the NCCL
/// module is linked without this folder's library.
inline int64_t payload_bytes(const CollectiveRecord& record) {
  return record.count * dtype_bytes(record.dtype);
}

/// Describes a collective: "all_reduce #12 (gradient bucket 7, 4194304 x F32)".
std::string describe(const CollectiveRecord& record);
/// Returns whether two ranks are in the same collective: everything except time, state and call
/// site is equal.
bool same_collective(const CollectiveRecord& a, const CollectiveRecord& b);
/// Returns whether a peer is still in the group's collective with this number.
bool is_in_collective(const CollectiveRecord& peer, int64_t sequence);

}  // namespace ftrun

#include "cluster/collective_record.h"

#include "base/error.h"

namespace ftrun {

std::string describe(const CollectiveRecord& record) {
  std::string inside = record.site;
  if (record.kind != CollectiveKind::kBarrier)
    inside += cat(inside.empty() ? "" : ", ",
                  record.kind == CollectiveKind::kCountedAllToAll ? "at most " : "", record.count,
                  " x ", dtype_name(record.dtype));
  if (record.kind == CollectiveKind::kShift) inside += cat(", by ", record.peer);
  const std::string name = cat(collective_name(record.kind), " #", record.sequence);
  return inside.empty() ? name : cat(name, " (", inside, ")");
}

bool same_collective(const CollectiveRecord& a, const CollectiveRecord& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.count == b.count && a.peer == b.peer;
}

bool is_in_collective(const CollectiveRecord& peer, int64_t sequence) {
  return peer.state == CollectiveState::kEntered && peer.sequence == sequence;
}

}  // namespace ftrun

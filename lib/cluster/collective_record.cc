#include "cluster/collective_record.h"

#include "base/error.h"

namespace ftrun {

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kCountedAllToAll:
      return "counted_all_to_all";
    case CollectiveKind::kShift:
      return "shift";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
  }
  return "?";
}

bool is_point_to_point(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

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

}  // namespace ftrun

#include "base/collective_kind.h"

#include <set>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("each kind of collective has a name that no other kind has") {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kCollectiveKinds; ++kind)
    names.insert(collective_name(static_cast<CollectiveKind>(kind)));
  CHECK(names.size() == static_cast<size_t>(kCollectiveKinds));
  CHECK(collective_name(CollectiveKind::kAllReduce) == "all_reduce");
  CHECK(collective_name(CollectiveKind::kBarrier) == "barrier");
  CHECK(collective_name(CollectiveKind::kReceive) == "receive");
}

TEST_CASE("a rank sends the bytes of its input that other ranks need") {
  CHECK(sent_bytes(CollectiveKind::kAllReduce, 400, 4) == 600);
  CHECK(sent_bytes(CollectiveKind::kAllReduce, 10, 4) == 15);
  CHECK(sent_bytes(CollectiveKind::kAllReduce, 9, 4) == 13);  // rounded down
  CHECK(sent_bytes(CollectiveKind::kReduceScatter, 400, 4) == 300);
  CHECK(sent_bytes(CollectiveKind::kAllGather, 100, 4) == 300);
  CHECK(sent_bytes(CollectiveKind::kAllToAll, 400, 4) == 300);
  CHECK(sent_bytes(CollectiveKind::kCountedAllToAll, 400, 4) == 300);
  CHECK(sent_bytes(CollectiveKind::kShift, 100, 4) == 100);
  CHECK(sent_bytes(CollectiveKind::kBroadcast, 100, 4) == 300);
  CHECK(sent_bytes(CollectiveKind::kBarrier, 0, 4) == 0);
  CHECK(sent_bytes(CollectiveKind::kSend, 100, 2) == 100);
  CHECK(sent_bytes(CollectiveKind::kReceive, 100, 2) == 0);
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kAllToAll})
    CHECK(sent_bytes(kind, 400, 1) == 0);
}

}  // namespace
}  // namespace ftrun

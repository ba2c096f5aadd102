#include "cluster/rank_mesh.h"

#include <set>

#include "base/error.h"

#include <catch2/catch.hpp>

using namespace ftrun;

TEST_CASE("the tensor axis is the fastest and the pipeline axis the slowest") {
  const RankMesh mesh({.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2});
  REQUIRE(mesh.world() == 8);
  REQUIRE(mesh.coordinate(1) == MeshPoint{.tp = 1});
  REQUIRE(mesh.coordinate(2) == MeshPoint{.dp_shard = 1});
  REQUIRE(mesh.coordinate(7) == MeshPoint{.pp = 1, .dp_shard = 1, .tp = 1});
}

TEST_CASE("a rank's coordinate leads back to the rank, over the whole mesh") {
  const RankMesh mesh({.pp = 2, .dp_replicate = 3, .dp_shard = 2, .cp = 2, .tp = 4});
  for (int rank = 0; rank < mesh.world(); ++rank)
    REQUIRE(mesh.rank_at(mesh.coordinate(rank)) == rank);
}

TEST_CASE("a group holds the ranks that differ only along its axes") {
  const RankMesh mesh({.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2});
  REQUIRE(mesh.group_of(5, {MeshAxis::kTensor}).ranks == std::vector<int>{4, 5});
  REQUIRE(mesh.group_of(5, {MeshAxis::kPipeline}).ranks == std::vector<int>{1, 5});
  REQUIRE(mesh.group_of(5, {MeshAxis::kShard, MeshAxis::kTensor}).ranks ==
          std::vector<int>{4, 5, 6, 7});
}

TEST_CASE("a group has the same name on every member, whatever the order of the axes") {
  const RankMesh mesh({.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 2, .tp = 2});
  REQUIRE(mesh.group_of(13, {MeshAxis::kShard, MeshAxis::kContext}).name == "dp_shard+cp@9");
  for (const RankGroup& group : mesh.groups({MeshAxis::kShard, MeshAxis::kContext})) {
    for (const int rank : group.ranks)
      REQUIRE(mesh.group_of(rank, {MeshAxis::kContext, MeshAxis::kShard}).name == group.name);
  }
}

TEST_CASE("the groups along any axes divide the ranks without remainder or overlap") {
  const RankMesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 1, .tp = 3});
  const auto groups = mesh.groups({MeshAxis::kReplicate, MeshAxis::kShard});
  std::set<int> seen;
  for (const RankGroup& group : groups) seen.insert(group.ranks.begin(), group.ranks.end());
  REQUIRE(groups.size() == 6);
  REQUIRE(seen.size() == 24);
  REQUIRE(groups.front().index_of(3) == 1);
  REQUIRE(groups.front().index_of(1) == -1);
}

TEST_CASE("a rank describes itself by the axes that have more than one rank") {
  REQUIRE(RankMesh({.pp = 2, .dp_replicate = 1, .dp_shard = 3, .cp = 1, .tp = 1}).place_text(5) ==
          "rank 5 (pp 1, dp_shard 2)");
  REQUIRE(RankMesh({.pp = 1, .dp_replicate = 1, .dp_shard = 1, .cp = 1, .tp = 1}).place_text(0) ==
          "rank 0");
}

TEST_CASE("a mesh with an axis of size zero is refused by name") {
  REQUIRE_THROWS_WITH(RankMesh({.pp = 1, .dp_replicate = 1, .dp_shard = 0, .cp = 1, .tp = 1}),
                      "the mesh has 0 ranks along dp_shard\n  remedy: every degree of parallelism "
                      "is at least 1");
}

#include "cluster/rank_mesh.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "base/error.h"

#include <catch2/catch.hpp>

using namespace ftrun;

TEST_CASE("the tensor axis is the fastest and the pipeline axis the slowest") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 1, .data = 2, .context = 1, .tensor = 2});
  REQUIRE(mesh.world_size() == 8);
  REQUIRE(mesh.coordinates_of(1) == PerAxis{.tensor = 1});
  REQUIRE(mesh.coordinates_of(2) == PerAxis{.data = 1});
  REQUIRE(mesh.coordinates_of(7) == PerAxis{.pipeline = 1, .data = 1, .tensor = 1});
}

TEST_CASE("a rank's coordinate maps back to the rank, over the whole mesh") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 3, .data = 2, .context = 2, .tensor = 4});
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    REQUIRE(mesh.rank_at(mesh.coordinates_of(rank)) == rank);
}

TEST_CASE("a group holds the ranks that differ only along its axes") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 1, .data = 2, .context = 1, .tensor = 2});
  REQUIRE(mesh.group_of(5, {MeshAxis::kTensor}).ranks == std::vector<int>{4, 5});
  REQUIRE(mesh.group_of(5, {MeshAxis::kPipeline}).ranks == std::vector<int>{1, 5});
  REQUIRE(mesh.group_of(5, {MeshAxis::kData, MeshAxis::kTensor}).ranks ==
          std::vector<int>{4, 5, 6, 7});
}

TEST_CASE("a group has the same name on every member, whatever the order of the axes") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 1, .data = 2, .context = 2, .tensor = 2});
  REQUIRE(mesh.group_of(13, {MeshAxis::kData, MeshAxis::kContext}).name() == "data+context@9");
  for (const RankGroup& group : mesh.list_groups({MeshAxis::kData, MeshAxis::kContext})) {
    for (const int rank : group.ranks)
      REQUIRE(mesh.group_of(rank, {MeshAxis::kContext, MeshAxis::kData}).name() == group.name());
  }
}

TEST_CASE("the groups along any axes divide the ranks without remainder or overlap") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 2, .data = 2, .context = 1, .tensor = 3});
  const auto groups = mesh.list_groups({MeshAxis::kDataReplicate, MeshAxis::kData});
  std::set<int> seen;
  for (const RankGroup& group : groups) seen.insert(group.ranks.begin(), group.ranks.end());
  REQUIRE(groups.size() == 6);
  REQUIRE(seen.size() == 24);
  REQUIRE(groups.front().index_of(3) == 1);
  REQUIRE(groups.front().index_of(1) == -1);
}

TEST_CASE("a group takes neighbors, or every k-th rank, of several axes as if they were one") {
  const RankMesh mesh({.pipeline = 1, .data_replicate = 2, .data = 3, .context = 4, .tensor = 2});
  const MeshAxes line{MeshAxis::kContext, MeshAxis::kData};
  const RankGroup neighbors = mesh.group_of(35, {mesh.neighbors(line, 6)});
  CHECK(neighbors.ranks == std::vector<int>{25, 27, 29, 31, 33, 35});
  CHECK(neighbors.name() == "(data+context)/6@25");
  const RankGroup apart = mesh.group_of(35, {mesh.every_kth(line, 6)});
  CHECK(apart.ranks == std::vector<int>{35, 47});
  CHECK(apart.name() == "(data+context)%6@35");
  CHECK(mesh.group_of(35, {mesh.every_kth({MeshAxis::kContext}, 2)}).name() == "context%2@35");
  CHECK(mesh.group_of(35, {mesh.every_kth({MeshAxis::kContext}, 2)}).ranks ==
        std::vector<int>{35, 39});
  CHECK(mesh.group_of(35, {mesh.neighbors(line, 12)}).name() == "data+context@25");
}

TEST_CASE("groups of neighbors and of every k-th rank divide the mesh, and meet in one rank") {
  const RankMesh mesh({.pipeline = 2, .data_replicate = 1, .data = 3, .context = 4, .tensor = 2});
  const MeshAxes line{MeshAxis::kContext, MeshAxis::kData};
  for (const int experts : {1, 2, 3, 4, 6, 12}) {
    std::multiset<int> seen;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const RankGroup near = mesh.group_of(rank, {mesh.neighbors(line, experts)});
      const RankGroup far = mesh.group_of(rank, {mesh.every_kth(line, experts)});
      REQUIRE(near.size() == experts);
      REQUIRE(near.size() * far.size() == 12);
      std::vector<int> both;
      std::set_intersection(near.ranks.begin(), near.ranks.end(), far.ranks.begin(),
                            far.ranks.end(), std::back_inserter(both));
      REQUIRE(both == std::vector<int>{rank});
      for (const int member : near.ranks)
        REQUIRE(mesh.group_of(member, {mesh.neighbors(line, experts)}).name() == near.name());
      if (near.ranks.front() == rank) seen.insert(near.ranks.begin(), near.ranks.end());
    }
    REQUIRE(seen.size() == 48);
    REQUIRE(seen.count(47) == 1);
  }
}

TEST_CASE("a group of several factors is their product") {
  const RankMesh mesh({.pipeline = 1, .data_replicate = 1, .data = 4, .context = 1, .tensor = 2});
  const RankGroup group =
      mesh.group_of(5, {mesh.every_kth({MeshAxis::kData, MeshAxis::kContext}, 2),
                        mesh.all_places({MeshAxis::kTensor})});
  CHECK(group.ranks == std::vector<int>{0, 1, 4, 5});
  CHECK(group.name() == "data%2+tensor@0");
  CHECK(group.factors ==
        std::vector<StridedPlaces>{{{MeshAxis::kData}, 2, 2}, {{MeshAxis::kTensor}, 2, 1}});
}

TEST_CASE("a group knows the axes along which its ranks differ, whatever it is called") {
  const RankMesh mesh({.pipeline = 3, .data_replicate = 2, .data = 2, .context = 2, .tensor = 1});
  const MeshAxes state{MeshAxis::kData, MeshAxis::kContext};
  const RankGroup shards = mesh.group_of(5, state);
  CHECK(shards.axes() == state);
  CHECK(shards.runs_within(state));
  CHECK_FALSE(shards.runs_within({MeshAxis::kData}));
  CHECK(shards.runs_along(MeshAxis::kContext));
  // There is only one rank along the tensor axis.
  CHECK(mesh.group_of(5, {MeshAxis::kData, MeshAxis::kTensor}).axes() == MeshAxes{MeshAxis::kData});
  CHECK(mesh.group_of(5, {MeshAxis::kTensor}).ranks == std::vector<int>{5});
  CHECK_FALSE(mesh.group_of(5, {MeshAxis::kTensor}).runs_within(state));
  CHECK(mesh.group_of_ends(5, MeshAxis::kPipeline).factors ==
        std::vector<StridedPlaces>{{{MeshAxis::kPipeline}, 2, 2}});
  CHECK(mesh.group_of_ends(5, MeshAxis::kPipeline).name() == "pipeline/ends@5");
  const RankGroup link = mesh.make_link(21, 13, MeshAxis::kPipeline);
  CHECK(link.name() == "pipeline@21>13");
  CHECK(link.runs_within({MeshAxis::kPipeline}));
  CHECK(link.factors == std::vector<StridedPlaces>{{{MeshAxis::kPipeline}, 2, 1}});
}

TEST_CASE("a mesh with an axis of size zero is refused by name") {
  REQUIRE_THROWS_WITH(
      RankMesh({.pipeline = 1, .data_replicate = 1, .data = 0, .context = 1, .tensor = 1}),
      "the mesh has 0 ranks along data\n  remedy: use a degree of at least 1 for "
      "each kind of parallelism");
}

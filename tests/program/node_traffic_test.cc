#include "axes/tensor/node_traffic.h"

#include <string>
#include <vector>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

RankMesh make_mesh(int pp, int data, int tp) {
  return RankMesh({.pipeline = pp, .data_replicate = 1, .data = data, .context = 1, .tensor = tp});
}

int64_t thousand_bytes(int) {
  return 1000;
}

TEST_CASE("tensor groups within nodes cross nothing, wherever stages and data-parallel ranks lie") {
  REQUIRE(tensor_node_traffic(make_mesh(2, 2, 4), nodes_in_order(16, 4), thousand_bytes)
              .crossing_groups == 0);
  REQUIRE(tensor_node_traffic(make_mesh(2, 2, 4), nodes_in_order(16, 2), thousand_bytes).bytes ==
          0);
  REQUIRE(tensor_node_traffic_warning({}, {}).empty());
}

TEST_CASE("a tensor group on two nodes passes its bytes twice in a ring") {
  const std::vector<std::string> nodes = nodes_in_order(8, 4);
  const TensorNodeTraffic traffic = tensor_node_traffic(make_mesh(1, 2, 4), nodes, thousand_bytes);
  REQUIRE(traffic.crossing_groups == 2);
  REQUIRE(traffic.first_group == std::vector<int>{0, 1, 2, 3});
  REQUIRE(traffic.bytes == 4 * 1000);
  REQUIRE(tensor_node_traffic_warning(traffic, nodes)
              .starts_with(
                  "tensor ranks are on different nodes: ranks 0, 1, 2, 3 on node 0, node "
                  "1, and 1 more group. Each step sends 3.91 KiB between nodes while layers wait"));
}

TEST_CASE("ranks that alternate between nodes cross nodes at every link of the ring") {
  const std::vector<std::string> nodes{"a", "b", "a", "b"};
  const TensorNodeTraffic traffic = tensor_node_traffic(make_mesh(1, 1, 4), nodes, thousand_bytes);
  REQUIRE(traffic.crossing_groups == 1);
  REQUIRE(traffic.bytes == 4 * 1000);
}

TEST_CASE("traffic bytes are counted for the ranks that send them") {
  const std::vector<std::string> nodes{"a", "a", "b", "b"};
  const auto by_rank = [](int rank) { return int64_t{1} << rank; };
  REQUIRE(tensor_node_traffic(make_mesh(1, 1, 4), nodes, by_rank).bytes == (1 << 1) + (1 << 3));
  REQUIRE(sends_to_other_node(make_mesh(1, 1, 4), 1, nodes));
  REQUIRE(!sends_to_other_node(make_mesh(1, 1, 4), 2, nodes));
}

TEST_CASE("nodes that do not divide the ranks are refused") {
  try {
    nodes_in_order(6, 4);
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    REQUIRE(error.message() == "--nodes 4: 6 ranks cannot be spread evenly over them");
  }
}

}  // namespace
}  // namespace ftrun

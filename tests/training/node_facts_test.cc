#include "training/node_facts.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::string text_of(const std::vector<NodeFact>& facts) {
  return facts_text(facts);
}

TEST_CASE("equal nodes have no differences") {
  const std::string alike =
      text_of({{"the ftrun binary", "5 bytes, xxh3 a"}, {"data.train", "7 sequences"}});
  REQUIRE(differing_facts_text(std::vector{alike, alike, alike},
                               std::vector<std::string>{"n1", "n1", "n2"})
              .empty());
}

TEST_CASE("a node that differs is named once, with each difference and both values") {
  const std::string first = text_of({{"the ftrun binary", "5 bytes, xxh3 a"},
                                     {"data.train", "7 sequences"},
                                     {"model.path a", "1"}});
  const std::string other = text_of({{"the ftrun binary", "6 bytes, xxh3 b"},
                                     {"data.train", "7 sequences"},
                                     {"model.path b", "1"}});
  REQUIRE(differing_facts_text(std::vector{first, first, other, other},
                               std::vector<std::string>{"n1", "n1", "n2", "n2"}) ==
          "\n  n2 (rank 2): model.path a is missing; on n1 (rank 0): 1"
          "\n  n2 (rank 2): model.path b is 1; on n1 (rank 0): missing"
          "\n  n2 (rank 2): the ftrun binary is 6 bytes, xxh3 b; on n1 (rank 0): 5 bytes, xxh3 a");
}

TEST_CASE("if ranks of one node see different facts, both are named") {
  const std::string first = text_of({{"data.train", "7"}});
  REQUIRE(differing_facts_text(
              std::vector{first, text_of({{"data.train", "8"}}), text_of({{"data.train", "9"}})},
              std::vector<std::string>{"n1", "n1", "n1"}) ==
          "\n  n1 (rank 1): data.train is 8; on n1 (rank 0): 7\n  n1 (rank 2): data.train is 9; on "
          "n1 (rank 0): 7");
}

TEST_CASE("facts of the program name this program's file") {
  const std::vector<NodeFact> facts = program_facts({.version = "1.2", .git_commit = "abc"});
  REQUIRE(facts.at(0).value == "1.2 abc");
  REQUIRE(facts.at(1).name == "the ftrun binary");
  REQUIRE(facts.at(1).value.find(" bytes, xxh3 ") != std::string::npos);
}

}  // namespace
}  // namespace ftrun

#include "config/yaml_reader.h"

#include "base/error.h"
#include "base/text.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

ConfigNode read_yaml_text(const std::string& text) {
  Problems problems;
  ConfigNode node = read_yaml("c.yaml", text, problems);
  REQUIRE(problem_texts(problems.all()) == Lines{});
  return node;
}

Lines yaml_faults(const std::string& text) {
  Problems problems;
  read_yaml("c.yaml", text, problems);
  return problem_texts(problems.all());
}

}  // namespace

TEST_CASE("a YAML reader knows the position of every key and value") {
  const ConfigNode root = read_yaml_text("# c\na:\n  b: [1, x]\nd: 5e8\né: [é, 7]\n");
  REQUIRE(root.find("é")->items[1].at == Position{"c.yaml", 5, 8});
  REQUIRE(root.find("a")->entries[0].at == Position{"c.yaml", 3, 3});
  REQUIRE(root.find("a")->find("b")->items[1].at == Position{"c.yaml", 3, 10});
  REQUIRE(root.find("d")->at == Position{"c.yaml", 4, 4});
}

TEST_CASE("a YAML reader tells plain scalars from quoted ones by YAML 1.2's core rules") {
  const ConfigNode root =
      read_yaml_text("[1e-5, \"1e-5\", '8', yes, true, 0x1F, 0o17, ~, .inf, -2.5, 1_000, 12:30]");
  using Kind = ConfigNodeKind;
  const std::vector<Kind> kinds{Kind::kFloat, Kind::kText,  Kind::kText, Kind::kText,
                                Kind::kBool,  Kind::kInt,   Kind::kInt,  Kind::kNull,
                                Kind::kFloat, Kind::kFloat, Kind::kText, Kind::kText};
  for (size_t i = 0; i < kinds.size(); ++i) REQUIRE(root.items[i].kind == kinds[i]);
  REQUIRE(root.items[5].integer == 31);
  REQUIRE(root.items[6].integer == 15);
  REQUIRE(root.items[3].is_unquoted);
  REQUIRE_FALSE(root.items[1].is_unquoted);
}

TEST_CASE("a YAML reader merges merge keys, own keys first") {
  const ConfigNode root = read_yaml_text(
      "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nuse:\n  <<: [*b, *o]\n  x: 9\n");
  const ConfigNode& use = *root.find("use");
  REQUIRE(use.find("x")->integer == 9);
  REQUIRE(use.find("y")->integer == 2);
  REQUIRE(use.find("z")->integer == 4);
  REQUIRE(use.find("<<") == nullptr);
  REQUIRE(yaml_faults("a:\n  <<: 3\n") ==
          Lines{"c.yaml:2:7: error: the merge key << expects a section, found 3"});
}

TEST_CASE("a YAML reader reports where a key is written twice") {
  REQUIRE(yaml_faults("a: 1\nb:\n  c: 1\n  c: 2\n") ==
          Lines{"c.yaml:4:3: error: the key \"c\" is written twice (first at line 3)\n"
                "  remedy: keep one of the two"});
}

TEST_CASE("a YAML reader reports syntax errors with their position and what to look for") {
  REQUIRE(yaml_faults("a: 1\n\tb: 2\n") ==
          Lines{"c.yaml:2:1: error: not valid YAML: illegal tab when looking for indentation\n"
                "  remedy: indent with spaces: YAML allows no tabs there"});
  REQUIRE(yaml_faults("a: [1, 2\nb: 3\n").front().starts_with("c.yaml:"));
  REQUIRE(yaml_faults("a: !python/object x\n") ==
          Lines{"c.yaml:1:4: error: the tag !python/object is unknown\n  remedy: remove the tag"});
  REQUIRE(yaml_faults("a: 1\n---\nb: 2\n") ==
          Lines{"c.yaml:2:1: error: a second YAML document begins here, expected one in a file\n"
                "  remedy: give each its own file; --config may be repeated"});
}

TEST_CASE("a YAML reader ends on a document that begins with an invalid character") {
  const Lines nothing{
      "c.yaml:1:1: error: not valid YAML: no value begins with this\n  remedy: look at this line "
      "and the one above it"};
  CHECK(yaml_faults(", a: 1\n") == nothing);
  CHECK(yaml_faults(",") == nothing);
  CHECK(yaml_faults("{a: 1}\n, b: 2\n")
            .front()
            .starts_with("c.yaml:2:1: error: a second YAML document begins here"));
  // Whatever the reader finds, it must end.
  for (const std::string begin :
       {"]", "}", ":", "?", "-", "&a", "*a", "!t", "|", ">", "%", "@", "`", "---", "..."})
    for (const std::string end : {"", "\n", " a: 1\n", "\n---\n", "\n,\n"})
      yaml_faults(begin + end);
}

TEST_CASE("a YAML reader refuses aliases that grow or are cyclic, and endless nesting") {
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string uses = join(Lines(10, cat("*a", i - 1)), ",");
    bomb += cat("a", i, ": &a", i, " [", uses, "]\n");
  }
  REQUIRE(yaml_faults(bomb) ==
          Lines{"c.yaml:1:1: error: holds more than 100000 values, counting those that aliases "
                "repeat"});
  REQUIRE(yaml_faults("a: &a [*a]\n") == Lines{"c.yaml:1:1: error: nested deeper than 64 levels"});
  REQUIRE(yaml_faults(std::string(10'000, '[')).size() == 1);
  // A long text that is used often counts as many texts.
  std::string texts = "a: &a " + std::string(100'000, 'x') + "\nb: [";
  for (int i = 0; i < 100; ++i) texts += "*a,";
  REQUIRE(yaml_faults(texts + "]\n") ==
          Lines{"c.yaml:1:1: error: holds more than 8388608 bytes of text, counting those that "
                "aliases repeat"});
}

TEST_CASE("a YAML reader stops at endless keys and names") {
  std::string keys, merged = "a: &a {";
  for (int i = 0; i <= 1000; ++i) keys += cat("k", i, ": 1\n");
  REQUIRE(
      yaml_faults(keys) ==
      Lines{
          "c.yaml:1:1: error: a section holds more than 1000 keys (line 1001): is this a config?"});
  for (int i = 0; i < 600; ++i) merged += cat("k", i, ": 1, ");
  merged += "}\nb: &b {";
  for (int i = 600; i < 1200; ++i) merged += cat("k", i, ": 1, ");
  REQUIRE(
      yaml_faults(merged + "}\nc: {<<: [*a, *b]}\n") ==
      Lines{"c.yaml:1:1: error: a section holds more than 1000 keys (line 2): is this a config?"});
  REQUIRE(yaml_faults(std::string(257, 'k') + ": 1\n") ==
          Lines{"c.yaml:1:1: error: the key in line 1 has 257 bytes; the limit is 256: is this "
                "a config?"});
}

TEST_CASE("a YAML reader counts columns in characters wherever in a line they are") {
  REQUIRE(yaml_faults("a: {\"ü\": [ä, ö], b: 1, b: 2}\n") ==
          Lines{"c.yaml:1:24: error: the key \"b\" is written twice (first at line 1)\n"
                "  remedy: keep one of the two"});
}

}  // namespace ftrun

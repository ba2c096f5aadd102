#include "config/json_reader.h"

#include <fstream>
#include <iterator>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "corpus.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

ConfigNode read(const std::string& text, std::vector<std::string> expected = {}) {
  Problems problems;
  ConfigNode node = read_json("c.json", text, problems);
  REQUIRE(problem_texts(problems.all()) == expected);
  return node;
}

std::vector<std::string> json_faults(const std::string& text) {
  Problems problems;
  read_json("c.json", text, problems);
  return problem_texts(problems.all());
}

// Converts a node to nlohmann/json's representation.
nlohmann::json as_json(const ConfigNode& node) {
  switch (node.kind) {
    case ConfigNodeKind::kNull:
      return nullptr;
    case ConfigNodeKind::kBool:
      return node.boolean;
    case ConfigNodeKind::kInt:
      return node.integer;
    case ConfigNodeKind::kFloat:
      return node.number;
    case ConfigNodeKind::kText:
      return node.text;
    case ConfigNodeKind::kList:
      break;
    case ConfigNodeKind::kMap: {
      auto out = nlohmann::json::object();
      for (const ConfigEntry& entry : node.entries) out[entry.key] = as_json(entry.value);
      return out;
    }
  }
  auto out = nlohmann::json::array();
  for (const ConfigNode& item : node.items) out.push_back(as_json(item));
  return out;
}

}  // namespace

TEST_CASE("a JSON reader knows the position of every key and value") {
  const ConfigNode root = read("{\n  \"a\": {\"é\\u00e9\": [1,\n     2.5]},\n\t\"b\" : \"x\"\n}");
  const ConfigNode& inner = *root.find("a")->find("éé");
  REQUIRE(inner.at == Position{"c.json", 2, 20});
  REQUIRE(inner.items[1].at == Position{"c.json", 3, 6});
  REQUIRE(root.entries[1].at == Position{"c.json", 4, 2});
  REQUIRE(root.entries[1].value.at == Position{"c.json", 4, 8});
}

TEST_CASE("a JSON reader takes comments, trailing commas and a byte order mark") {
  const ConfigNode root =
      read("\xEF\xBB\xBF// one\n{ # two\n \"a\": 1, /* three\n four */ \"b\": [1, 2,], }\n");
  REQUIRE(root.find("a")->integer == 1);
  REQUIRE(root.find("b")->items.size() == 2);
  REQUIRE(root.find("a")->at == Position{"c.json", 3, 7});
}

TEST_CASE("a JSON reader reads every kind of number and escape") {
  const ConfigNode root =
      read(R"([0, -7, 5e8, 1.5, 9223372036854775807, 1e400, Infinity, "\"\\\/\b\f\n\r\t", )"
           R"("\ud83d\ude00"])");
  REQUIRE(root.items[0].kind == ConfigNodeKind::kInt);
  REQUIRE(root.items[1].integer == -7);
  REQUIRE(root.items[2].kind == ConfigNodeKind::kFloat);
  REQUIRE(root.items[2].number == 5e8);
  REQUIRE(root.items[4].integer == INT64_MAX);
  REQUIRE(root.items[5].number == std::numeric_limits<double>::infinity());
  REQUIRE(root.items[6].number == std::numeric_limits<double>::infinity());
  REQUIRE(root.items[7].text == "\"\\/\b\f\n\r\t");
  REQUIRE(root.items[8].text == "😀");
}

TEST_CASE("a JSON reader reports where a key is written twice, at any depth") {
  REQUIRE(json_faults("{\"a\": {\"x\": 1,\n \"x\": 2}, \"b\": 1, \"b\": 1}") ==
          Lines{"c.json:2:2: error: the key \"x\" is written twice (first at line 1)\n"
                "  remedy: keep one of the two",
                "c.json:2:19: error: the key \"b\" is written twice (first at line 2)\n"
                "  remedy: keep one of the two"});
}

TEST_CASE("a JSON reader names template placeholders once for a file") {
  REQUIRE(
      json_faults("{\"a\": CONFIG_X, \"b\": ${zero_stage}, \"c\": CONFIG_X}") ==
      Lines{"c.json:1:7: error: CONFIG_X is a template placeholder, not a value (so are "
            "${zero_stage})\n"
            "  remedy: fill in the template first; the script that comes with it usually does"});
}

TEST_CASE("a JSON reader explains each syntax error with its position") {
  const auto one = [](const std::string& text) { return json_faults(text).front(); };
  REQUIRE(one("{\"a\": 1 \"b\": 2}") ==
          "c.json:1:9: error: expected ',' or '}', found '\"'\n  remedy: is a comma missing before "
          "it?");
  REQUIRE(one("{\"a\" 1}") == "c.json:1:6: error: expected ':' after the key \"a\", found '1'");
  REQUIRE(one("{a: 1}") ==
          "c.json:1:2: error: expected a key in double quotes, found 'a'\n"
          "  remedy: write keys as \"key\": value");
  REQUIRE(one("{'a': 1}") ==
          "c.json:1:2: error: found a key in single quotes\n  remedy: write it in double quotes");
  REQUIRE(one("{\"a\": [1, 2") == "c.json:1:7: error: this '[' is never closed");
  REQUIRE(one("{\"a\": \"x") == "c.json:1:7: error: this text is never closed with '\"'");
  REQUIRE(one("{\"a\": 1} x") == "c.json:1:10: error: found 'x' after the end of the config");
  REQUIRE(one("{\"a\": True}") ==
          "c.json:1:7: error: True is Python, not JSON\n  remedy: write true");
  REQUIRE(one("{\"a\": adam}") ==
          "c.json:1:7: error: the text adam has no quotes\n  remedy: write \"adam\"");
  REQUIRE(one("{\"a\": 1.2.3}") == "c.json:1:7: error: \"1.2.3\" is not a value of JSON");
  REQUIRE(one("{\"a\": \"\\x\"}") ==
          "c.json:1:8: error: \\x is not an escape of JSON\n  remedy: write \\\\ for a backslash");
  REQUIRE(one("{\"a\": \"\\ud83d\"}") ==
          "c.json:1:8: error: this \\u escape is half of a surrogate pair");
  REQUIRE(one("{\"a\": }") == "c.json:1:7: error: expected a value, found '}'");
  REQUIRE(one("/* open") == "c.json:1:1: error: this comment is never closed with */");
  REQUIRE(one("") == "c.json:1:1: error: expected a value, found the end of the file");
}

TEST_CASE("a JSON reader refuses nesting that would exhaust the stack") {
  const std::string deep(100'000, '[');
  REQUIRE(json_faults(deep) == Lines{"c.json:1:66: error: nested deeper than 64 levels"});
}

TEST_CASE("a JSON reader stops at what no config holds: keys, values and names without end") {
  std::string keys = "{\n", same = "{\n";
  for (int i = 0; i <= 1000; ++i) {
    keys += cat("\"k", i, "\": 1,\n");
    same += "\"k\": 1,\n";
  }
  REQUIRE(json_faults(keys + "}") ==
          Lines{"c.json:1002:1: error: this section holds more than 1000 keys: is this a config?"});
  REQUIRE(json_faults(same + "}").size() == 1000);  // one key, written twice a thousand times
  std::string list = "[";
  for (int i = 0; i < 100'000; ++i) list += "1,\n";
  REQUIRE(json_faults(list + "]") ==
          Lines{"c.json:100000:1: error: holds more than 100000 values: is this a config?"});
  REQUIRE(json_faults("{\"" + std::string(257, 'k') + "\": 1}") ==
          Lines{"c.json:1:2: error: this key has 257 bytes; the limit is 256: is this a "
                "config?"});
}

TEST_CASE("a JSON reader's messages never contain the value of a secret's key") {
  REQUIRE(json_faults("{\"wandb\": {\"api_key\": {\"value\": hunter2}}}") ==
          Lines{"c.json:1:33: error: this is not a JSON value\n"
                "  remedy: write texts in double quotes"});
  REQUIRE(json_faults("{\"a_token\": [1], \"b\": hunter2}") ==
          Lines{"c.json:1:23: error: the text hunter2 has no quotes\n  remedy: write \"hunter2\""});
}

TEST_CASE("a JSON reader never crashes on a config that was cut or changed in one byte") {
  const std::string text =
      "{\"a\": {\"b\": [1, 2.5e3, true, null, \"x\\u00e9\\n\"]}, /* c */ \"d\": -3, } // e\n";
  for (size_t i = 0; i < text.size(); ++i) {
    Problems problems;
    read_json("c.json", text.substr(0, i), problems);
    for (const char c : {'\0', '"', '{', '}', '\\', '\xff', ','}) {
      std::string changed = text;
      changed[i] = c;
      read_json("c.json", changed, problems);
    }
  }
  REQUIRE(read(text).find("d")->integer == -3);
}

TEST_CASE("a JSON reader agrees with nlohmann/json on every real config that is strict JSON",
          "[.needs-reference]") {
  const std::string folder = corpus_folder();
  int compared = 0;
  for (const std::string& file : corpus_files({".json"})) {
    std::ifstream in(folder + "/" + file);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto theirs = nlohmann::json::parse(text, nullptr, false);
    if (theirs.is_discarded()) continue;
    INFO(file);
    Problems problems;
    REQUIRE(as_json(read_json(file, text, problems)) == theirs);
    REQUIRE(problems.all().empty());
    ++compared;
  }
  REQUIRE(compared == 171);
}

}  // namespace ftrun

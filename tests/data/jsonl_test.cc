#include "fixtures.h"

#include "data/jsonl_line.h"
#include "data/token_dataset.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::test;

namespace {

struct Parsed {
  std::string problem;
  std::vector<int32_t> ids, labels;
};

Parsed parse(const std::string& line) {
  Parsed parsed;
  parsed.problem = parse_jsonl_line(line, parsed.ids, parsed.labels);
  return parsed;
}

using TokenIds = std::vector<int32_t>;

}  // namespace

TEST_CASE("a JSONL line gives ids and labels", "[jsonl]") {
  REQUIRE(parse(R"({"input_ids": [1, 2, 3]})").labels == TokenIds{1, 2, 3});
  const Parsed masked = parse(R"({"labels":[-100,-100,3],"input_ids":[1,2,3]})");
  REQUIRE(masked.problem.empty());
  REQUIRE(masked.ids == TokenIds{1, 2, 3});
  REQUIRE(masked.labels == TokenIds{-100, -100, 3});
  REQUIRE(parse(R"({"input_ids":[]})").ids.empty());
}

TEST_CASE("padding told by the attention mask is dropped at both ends", "[jsonl]") {
  const Parsed padded = parse(
      R"({"input_ids":[0,5,6,0,0],"attention_mask":[0,1,1,0,0],"labels":[-100,-100,6,-100,-100]})");
  REQUIRE(padded.problem.empty());
  REQUIRE(padded.ids == TokenIds{5, 6});
  REQUIRE(padded.labels == TokenIds{-100, 6});
  REQUIRE(parse(R"({"input_ids":[1,2],"attention_mask":[0,0]})").ids.empty());
}

TEST_CASE("other keys of a JSONL line are skipped whatever they hold", "[jsonl]") {
  const Parsed parsed = parse(
      R"( { "meta" : {"a":[1,2.5e3,{"b":null}],"input_ids":[9]} , "s":"x\"]},{\\", "t":true,)"
      R"("input_ids":[4,5], "n":-1.5E+3, "e":{}, "l":[] } )");
  REQUIRE(parsed.problem.empty());
  REQUIRE(parsed.ids == TokenIds{4, 5});
}

TEST_CASE("lines that are not data are refused with column and reason", "[jsonl]") {
  const std::pair<const char*, const char*> cases[] = {
      {"[1,2]", "column 1: expected an object with input_ids"},
      {"{}", "has no \"input_ids\""},
      {R"({"text":"hello"})", "has no \"input_ids\""},
      {R"({"input_ids":[1,2],"completion_mask":[0,1]})",
       "\"completion_mask\" is not read: write labels, the ids with -100 for what does not count in the loss"},
      {R"({"assistant_masks":[0,1],"input_ids":[1,2]})",
       "\"assistant_masks\" is not read: write labels, the ids with -100 for what does not count in the loss"},
      {R"({"input_ids":5})", "column 14: expected an array of integers"},
      {R"({"input_ids":[1,2)", "column 18: expected ',' or ']'"},
      {R"({"input_ids":[1,2])", "column 19: expected ',' or '}'"},
      {R"({"input_ids":[1,]})", "column 17: expected an integer"},
      {R"({"input_ids":[1.5]})", "column 16: expected an integer, found a fraction"},
      {R"({"input_ids":["1"]})", "column 15: expected an integer"},
      {R"({"input_ids":[-5]})", "column 15: id -5 in input_ids is not a token id"},
      {R"({"input_ids":[99999999999]})", "column 15: id 99999999999 in input_ids is not a token id"},
      {R"({"input_ids":[99999999999999999999]})", "column 15: a number that no token id can be"},
      {R"({"input_ids":[1]} x)", "column 19: text after the object"},
      {R"({"input_ids":[1],})", "column 18: expected a string"},
      {R"({"input_ids":[1],"input_ids":[2]})", "column 30: \"input_ids\" appears twice"},
      {R"({"input_ids":[1,2],"labels":[1]})", "input_ids has 2 entries, labels has 1"},
      {R"({"input_ids":[1,2],"labels":[1,-1]})", "column 32: label -1 is neither a token id nor -100"},
      {R"({"input_ids":[1,2],"attention_mask":[1]})", "input_ids has 2 entries, attention_mask has 1"},
      {R"({"input_ids":[1],"attention_mask":[2]})",
       "column 36: attention_mask holds 2, expected 0 or 1"},
      {R"({"input_ids":[1,2,3],"attention_mask":[1,0,1]})",
       "column 44: attention_mask has a hole; zeros are read only as padding at the ends"},
      {R"({"input_ids":[1,2,3],"position_ids":[0,1,0]})",
       "column 42: position_ids holds 0 at index 2; packed lines are not read: write one document a "
       "line"},
      {R"({"input_ids":[1],"x":"abc)", "column 26: the string does not end"},
      {R"({"input_ids":[1],"x":"abc\)", "column 28: the string does not end"},
      {R"({"input_ids":[1],"x":tru})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x":})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x":nan})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x")", "column 21: expected ':' after the key"},
      {"{\"input_ids\":[1],\"x\":\"a\x01\"}", "column 24: a control character in a string"},
  };
  for (const auto& [line, problem] : cases) {
    INFO(line);
    REQUIRE(parse(line).problem == problem);
  }
  const std::string deep = R"({"x":)" + std::string(100000, '[');
  REQUIRE(parse(deep).problem == "column 71: nested too deeply");
}

TEST_CASE("every prefix and every changed byte of a line is handled", "[jsonl]") {
  const std::string line =
      R"({"input_ids":[1,22,3],"labels":[-100,22,3],"attention_mask":[1,1,1],"m":{"k":[0.5,"v"]}})";
  for (size_t size = 0; size < line.size(); ++size)
    REQUIRE_FALSE(parse(line.substr(0, size)).problem.empty());
  for (size_t at = 0; at < line.size(); ++at) {
    for (const int flip : {1, 2, 16, 0x80, 0xff}) {
      std::string changed = line;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const Parsed parsed = parse(changed);
      if (parsed.problem.empty()) REQUIRE(parsed.ids.size() == parsed.labels.size());
    }
  }
}

TEST_CASE("a JSONL file is a stream of its lines", "[jsonl]") {
  TempFolder folder;
  const std::string path = folder.write("d.jsonl",
                                        "\xEF\xBB\xBF{\"input_ids\":[1,2,3]}\r\n\n  \n"
                                        "{\"input_ids\":[]}\n"
                                        "{\"input_ids\":[4,5],\"labels\":[-100,7]}");
  const TokenDataset data({path}, {});
  REQUIRE(data.tokens() == 5);
  REQUIRE(data.documents() == 3);
  REQUIRE(data.document_start(1) == 3);
  REQUIRE(data.document_start(2) == 3);
  REQUIRE(data.trained(0, 5) == 4);
  TokenIds ids(3), labels(3);
  ReadScratch scratch;
  data.read(2, ids, labels, scratch);
  REQUIRE(ids == TokenIds{3, 4, 5});
  REQUIRE(labels == TokenIds{3, -100, 7});
  const TokenPlace place = data.place(4);
  REQUIRE(place.line == 5);
  REQUIRE(place.value == 5);
  REQUIRE(place.offset == 47);
}

TEST_CASE("a bad line of a JSONL file is named with a remedy that fits", "[jsonl]") {
  TempFolder folder;
  const auto refused = [&](const std::string& text) {
    const std::string path = folder.write("d.jsonl", text);
    return error_of([&] { TokenDataset({path}, {}); });
  };
  const std::string path = folder.file("d.jsonl");
  REQUIRE(refused("{\"input_ids\":[1]}\n\n{\"input_ids\":[1,x]}\n") ==
          path + ":3: column 17: expected an integer\n  remedy: expected one object a line, such as "
                 "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}");
  REQUIRE(refused("{\"messages\":[]}\n") ==
          path + ":1: has no \"input_ids\"\n  remedy: turn text or chats into tokens with "
                 "scripts/prepare_data.py");
  REQUIRE(refused("[{\"input_ids\":[1]}]") ==
          path + ":1: column 1: expected an object with input_ids\n  remedy: write one object a line "
                 "(JSON Lines), not one array");
  REQUIRE(refused("\n\n") ==
          path + ": holds no tokens\n  remedy: write the data again with scripts/prepare_data.py");
}

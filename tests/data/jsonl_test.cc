#include "fixtures.h"

#include <random>

#include "data/dataset_report.h"
#include "data/jsonl_fields.h"
#include "data/jsonl_line.h"
#include "data/token_dataset.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace ftrun::testing;

namespace {

struct ParsedLine {
  std::string problem;
  std::vector<int32_t> ids, labels;
  UnreadFields unread;
};

ParsedLine parse_line(const std::string& line) {
  ParsedLine parsed;
  parsed.problem = parse_jsonl_line(line, parsed.ids, parsed.labels, &parsed.unread);
  return parsed;
}

using TokenIds = std::vector<int32_t>;

/// Returns whether a field repeats what is known already of a line that is one document with ids 1,
/// 1, both trained on.
bool repeats_known_facts(JsonlField field, const std::string& value) {
  switch (field) {
    case JsonlField::kLabels:
    case JsonlField::kAttentionMask:
    case JsonlField::kLossMask:
      return value == "[1,1]";
    case JsonlField::kPositionIds:
      return value == "[0,1]";
    case JsonlField::kOtherMask:
    case JsonlField::kWeights:
      return value == "1" || value == "true" || value == "[1,1]";
    case JsonlField::kDesirable:
    case JsonlField::kTrain:
      return value == "1" || value == "true";
    case JsonlField::kLengths:
      return value.front() != '[';
    case JsonlField::kSegments:
      return value.front() != '[' || value == "[0,0]" || value == "[1,1]";
    case JsonlField::kMedia:
      return value.find_first_not_of("0123456789.") == value.npos;
    default:
      return false;
  }
}

}  // namespace

TEST_CASE("a JSONL line gives ids and labels", "[jsonl]") {
  REQUIRE(parse_line(R"({"input_ids": [1, 2, 3]})").labels == TokenIds{1, 2, 3});
  const ParsedLine masked = parse_line(R"({"labels":[-100,-100,3],"input_ids":[1,2,3]})");
  REQUIRE(masked.problem.empty());
  REQUIRE(masked.ids == TokenIds{1, 2, 3});
  REQUIRE(masked.labels == TokenIds{-100, -100, 3});
  REQUIRE(parse_line(R"({"input_ids":[]})").ids.empty());
}

TEST_CASE("padding marked by the attention mask is dropped at both ends", "[jsonl]") {
  const ParsedLine padded = parse_line(
      R"({"input_ids":[0,5,6,0,0],"attention_mask":[0,1,1,0,0],"labels":[-100,-100,6,-100,-100]})");
  REQUIRE(padded.problem.empty());
  REQUIRE(padded.ids == TokenIds{5, 6});
  REQUIRE(padded.labels == TokenIds{-100, 6});
  REQUIRE(parse_line(R"({"input_ids":[1,2],"attention_mask":[0,0]})").ids.empty());
}

TEST_CASE("other keys of a JSONL line are counted, whatever their values", "[jsonl]") {
  const ParsedLine parsed = parse_line(
      R"( { "meta" : {"a":[1,2.5e3,{"b":null}],"input_ids":[9]} , "s":"x\"]},{\\", "t":true,)"
      R"("input_ids":[4,5], "n":-1.5E+3, "e":{}, "l":[], "l2":[{"a":[]}] } )");
  REQUIRE(parsed.problem.empty());
  REQUIRE(parsed.ids == TokenIds{4, 5});
  REQUIRE(parsed.unread == UnreadFields{{"l2", 1}, {"n", 1}, {"s", 1}, {"t", 1}});
}

TEST_CASE("an empty value counts as absent", "[jsonl]") {
  const std::string fields =
      R"("labels":null,"attention_mask":[],"position_ids":[ ],"loss_mask":null,"seq_lengths":[],)"
      R"("images":{ },"label":"","x":null})";
  const ParsedLine parsed = parse_line(R"({"input_ids":[1,2],)" + fields);
  REQUIRE(parsed.problem.empty());
  REQUIRE(parsed.labels == TokenIds{1, 2});
  REQUIRE(parsed.unread.empty());
  REQUIRE(parse_line(R"({"input_ids":null})").problem == "has no \"input_ids\"");
}

TEST_CASE("fields that could change what is trained on are refused by name", "[jsonl]") {
  const std::string labels = "write labels, the ids with -100 for what does not count in the loss";
  const std::string packed = "packed lines are not read: write one document a line";
  const std::pair<std::string, std::string> cases[] = {
      {R"("seq_lengths":[1,2])", "\"seq_lengths\" describes several documents; " + packed},
      {R"("sequenceLengths":[[3]])", "\"sequenceLengths\" describes several documents; " + packed},
      {R"("cu_seqlens":[0,1,3])", "\"cu_seqlens\" describes several documents; " + packed},
      {R"("segment_ids":[0,0,1])", "\"segment_ids\" separates parts of the line; " + packed},
      {R"("Token-Type-Ids":[0,1,1])", "\"Token-Type-Ids\" separates parts of the line; " + packed},
      {R"("loss_weights":[0.0,1.0,1.0])",
       "\"loss_weights\" gives tokens weights, and ftrun gives all trained tokens the same "
       "weight: " +
           labels},
      {R"("sample_weight":0.5)",
       "\"sample_weight\" gives tokens weights, and ftrun gives all trained tokens the same "
       "weight: " +
           labels},
      {R"("w\u0065ight":2)",
       "\"w\\u0065ight\" gives tokens weights, and ftrun gives all trained tokens the same "
       "weight: " +
           labels},
      {R"("loss_mask":[0,1,1])", "\"loss_mask\" is not read: " + labels},
      {R"("loss_mask":[1,1])", "input_ids has 3 entries, loss_mask has 2"},
      {R"("labels":[1,2,3],"loss_mask":[0,1,1])",
       "\"loss_mask\" holds 0 at index 0, where labels trains on 1: only labels are read; write "
       "-100 there, or remove the mask"},
      {R"("labels":[1,2,3],"loss_mask":["a,b",1,1])",
       "\"loss_mask\" holds \"a at index 0, expected 0 or 1"},
      {R"("prompt_mask":[1,0,0],"labels":[1,2,3])", "\"prompt_mask\" is not read: " + labels},
      {R"("rejected_input_ids":[1])",
       "\"rejected_input_ids\" makes the line a preference, and ftrun has no preference "
       "training: write one line of input_ids for each answer to learn"},
      {R"("label":false)",
       "\"label\" is false: what the line says must not be imitated; remove the line"},
      {R"("label":3)",
       "\"label\" is 3, expected true (to be imitated) or false; remove the field if it says "
       "something else"},
      {R"("train":false)",
       "\"train\" is false, expected true; remove a line that is not to be trained on"},
      {R"("target_ids":[1,2,3])", "\"target_ids\" is not read: " + labels},
      {R"("pixel_values":[[0.5]])",
       "\"pixel_values\" holds images, audio or video, and ftrun trains only on tokens: remove "
       "the field if the text makes sense without it"},
  };
  for (const auto& [field, problem] : cases) {
    INFO(field);
    REQUIRE(parse_line(R"({"input_ids":[1,2,3],)" + field + "}").problem == problem);
    REQUIRE(parse_line("{" + field + R"(,"input_ids":[1,2,3]})").problem == problem);
    REQUIRE(parse_line("{" + field + R"(,"messages":[]})").problem == "has no \"input_ids\"");
  }
}

TEST_CASE("fields that repeat known facts are accepted", "[jsonl]") {
  const ParsedLine parsed =
      parse_line(R"({"input_ids":[1,2,3],"labels":[-100,2,3],"seq_lengths":[3],"cu_seqlens":[0,3],)"
                 R"("segment_ids":[4,4,4],"loss_weights":[1.0, 1.0, 1.0],)"
                 R"("completion_mask":[0, true ,1],"loss_mask":[1,1,1],"label":true,"weight":1,)"
                 R"("special_tokens_mask":[0,0,1],"length":3,"id":"a"})");
  REQUIRE(parsed.problem.empty());
  REQUIRE(parsed.labels == TokenIds{-100, 2, 3});
  REQUIRE(parsed.unread.empty());
}

TEST_CASE("no field of a JSONL line is ignored silently", "[jsonl]") {
  const std::string names[] = {"labels",
                               "attention_mask",
                               "position_ids",
                               "loss_mask",
                               "completionMask",
                               "seq_lengths",
                               "SegmentIds",
                               "weights",
                               "label",
                               "rejected",
                               "images",
                               "target_ids",
                               "prompt_mask",
                               "score",
                               "text",
                               "messages",
                               "id",
                               "meta",
                               "Source",
                               "train"};
  const std::string values[] = {"null",  "[]",    "{}",        "\"\"",   "0",     "1",
                                "0.5",   "true",  "false",     "\"x\"",  "[0,0]", "[1,1]",
                                "[0,1]", "[1,0]", "{\"k\":1}", "[[1,2]]"};
  const ParsedLine plain = parse_line(R"({"input_ids":[1,1]})");
  std::mt19937 chance(20261126);  // NOLINT(cert-msc51-cpp): the same lines each time
  for (int i = 0; i < 4000; ++i) {
    const std::string& name = names[chance() % std::size(names)];
    const std::string& value = values[chance() % std::size(values)];
    const ParsedLine parsed = parse_line(R"({"input_ids":[1,1],")" + name + "\":" + value + "}");
    INFO(name << " = " << value);
    const JsonlField field = classify_jsonl_key(name);
    const bool nothing = value == "null" || value == "[]" || value == "{}" || value == "\"\"";
    const bool read = parsed.ids != plain.ids || parsed.labels != plain.labels;
    const bool counted = parsed.unread.count(name) == 1;
    const bool anyway = repeats_known_facts(field, value);
    if (!parsed.problem.empty())
      CHECK((!nothing || field == JsonlField::kLabels || field == JsonlField::kAttentionMask ||
             field == JsonlField::kPositionIds));
    else if (field == JsonlField::kUnknown)
      CHECK(counted != nothing);
    else
      CHECK((nothing || read || anyway || field == JsonlField::kMetadata));
  }
}

TEST_CASE("lines that are not data are refused with column and reason", "[jsonl]") {
  const std::pair<const char*, const char*> cases[] = {
      {"[1,2]", "column 1: expected an object with input_ids"},
      {"{}", "has no \"input_ids\""},
      {R"({"text":"hello"})", "has no \"input_ids\""},
      {R"({"input_ids":[1,2],"completion_mask":[0,1]})",
       "\"completion_mask\" is not read: write labels, the ids with -100 for what does not count "
       "in the loss"},
      {R"({"assistant_masks":[0,1],"input_ids":[1,2]})",
       "\"assistant_masks\" is not read: write labels, the ids with -100 for what does not count "
       "in the loss"},
      {R"({"input_ids":5})", "column 14: expected an array of integers"},
      {R"({"input_ids":[1,2)", "column 18: expected ',' or ']'"},
      {R"({"input_ids":[1,2])", "column 19: expected ',' or '}'"},
      {R"({"input_ids":[1,]})", "column 17: expected an integer"},
      {R"({"input_ids":[1.5]})", "column 16: expected an integer, found a fraction"},
      {R"({"input_ids":["1"]})", "column 15: expected an integer"},
      {R"({"input_ids":[-5]})", "column 15: id -5 in input_ids is not a token id"},
      {R"({"input_ids":[99999999999]})",
       "column 15: id 99999999999 in input_ids is not a token id"},
      {R"({"input_ids":[99999999999999999999]})", "column 15: a number that no token id can be"},
      {R"({"input_ids":[1]} x)", "column 19: text after the object"},
      {R"({"input_ids":[1],})", "column 18: expected a string"},
      {R"({"input_ids":[1],"input_ids":[2]})", "column 30: \"input_ids\" appears twice"},
      {R"({"input_ids":[1,2],"labels":[1]})", "input_ids has 2 entries, labels has 1"},
      {R"({"input_ids":[1,2],"labels":[1,-1]})",
       "column 32: label -1 is neither a token id nor -100"},
      {R"({"input_ids":[1,2],"attention_mask":[1]})",
       "input_ids has 2 entries, attention_mask has 1"},
      {R"({"input_ids":[1],"attention_mask":[2]})",
       "column 36: attention_mask holds 2, expected 0 or 1"},
      {R"({"input_ids":[1,2,3],"attention_mask":[1,0,1]})",
       "column 44: attention_mask has a hole; zeros are read only as padding at the ends"},
      {R"({"input_ids":[1,2,3],"position_ids":[0,1,0]})",
       "column 42: position_ids holds 0 at index 2; packed lines are not read: write one document "
       "a line"},
      {R"({"input_ids":[1],"x":"abc)", "column 26: the string does not end"},
      {R"({"input_ids":[1],"x":"abc\)", "column 28: the string does not end"},
      {R"({"input_ids":[1],"x":tru})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x":})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x":nulll})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x":nan})", "column 22: expected a value"},
      {R"({"input_ids":[1],"x")", "column 21: expected ':' after the key"},
      {"{\"input_ids\":[1],\"x\":\"a\x01\"}", "column 24: a control character in a string"},
  };
  for (const auto& [line, problem] : cases) {
    INFO(line);
    REQUIRE(parse_line(line).problem == problem);
  }
  const std::string deep = R"({"x":)" + std::string(100000, '[');
  REQUIRE(parse_line(deep).problem == "column 71: nested too deeply");
}

TEST_CASE("every prefix of a JSONL line, and every change of a byte, is read or refused",
          "[jsonl]") {
  const std::string line =
      R"({"input_ids":[1,22,3],"labels":[-100,22,3],"attention_mask":[1,1,1],"m":{"k":[0.5,"v"]}})";
  for (size_t size = 0; size < line.size(); ++size)
    REQUIRE_FALSE(parse_line(line.substr(0, size)).problem.empty());
  for (size_t at = 0; at < line.size(); ++at) {
    for (const int flip : {1, 2, 16, 0x80, 0xff}) {
      std::string changed = line;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const ParsedLine parsed = parse_line(changed);
      if (parsed.problem.empty()) REQUIRE(parsed.ids.size() == parsed.labels.size());
    }
  }
}

TEST_CASE("a JSONL file is read as a stream of its lines", "[jsonl]") {
  TemporaryFolder folder;
  const std::string path = folder.write("d.jsonl",
                                        "\xEF\xBB\xBF{\"input_ids\":[1,2,3]}\r\n\n  \n"
                                        "{\"input_ids\":[]}\n"
                                        "{\"input_ids\":[4,5],\"labels\":[-100,7]}");
  const TokenDataset data({path}, {});
  REQUIRE(data.tokens() == 5);
  REQUIRE(data.documents() == 3);
  REQUIRE(data.document_start(1) == 3);
  REQUIRE(data.document_start(2) == 3);
  REQUIRE(data.count_trained(0, 5) == 4);
  TokenIds ids(3), labels(3);
  ReadScratch scratch;
  data.read(2, ids, labels, scratch);
  REQUIRE(ids == TokenIds{3, 4, 5});
  REQUIRE(labels == TokenIds{3, -100, 7});
  const TokenLocation location = data.locate(4);
  REQUIRE(location.line == 5);
  REQUIRE(location.value == 5);
  REQUIRE(location.offset == 47);
}

TEST_CASE("an invalid line of a JSONL file is named with a suitable remedy", "[jsonl]") {
  TemporaryFolder folder;
  const auto refused = [&](const std::string& text) {
    const std::string path = folder.write("d.jsonl", text);
    return error_text_of([&] { TokenDataset({path}, {}); });
  };
  const std::string path = folder / "d.jsonl";
  REQUIRE(refused("{\"input_ids\":[1]}\n\n{\"input_ids\":[1,x]}\n") ==
          path +
              ":3: column 17: expected an integer\n  remedy: write one object a line, such as "
              "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}");
  REQUIRE(refused("{\"input_ids\":[1,2],\"seq_lengths\":[1,1]}\n") ==
          path +
              ":1: \"seq_lengths\" describes several documents; packed lines are not read: write "
              "one document a line");
  REQUIRE(refused("{\"messages\":[]}\n") ==
          path +
              ":1: has no \"input_ids\"\n  remedy: turn text or chats into tokens with "
              "scripts/prepare_data.py");
  REQUIRE(refused("[{\"input_ids\":[1]}]") ==
          path +
              ":1: column 1: expected an object with input_ids\n  remedy: write one object a line "
              "(JSON Lines), not one array");
  REQUIRE(refused("\n\n") ==
          path + ": holds no tokens\n  remedy: write the data again with scripts/prepare_data.py");
}

TEST_CASE("unread fields of a JSONL file are named by its check and its description", "[jsonl]") {
  TemporaryFolder folder;
  const std::string path = folder.write("d.jsonl",
                                        "{\"input_ids\":[1,2,3],\"score\":1,\"id\":1}\n{\"input_"
                                        "ids\":[4,5],\"score\":2,\"text\":\"x\"}\n");
  const std::string note = path + ": not read: \"score\" of 2 lines, \"text\" of 1 line";
  REQUIRE(TokenDataset({path}, {}).opening_notices() == std::vector<std::string>{note});
  SequenceSetOptions options;
  options.sequence_length = 2;
  REQUIRE(data_report_text(check_dataset({path}, options, 100)).find("notice: " + note + "\n") !=
          std::string::npos);
  REQUIRE(describe_dataset(path).find("  note       " + note + "\n") != std::string::npos);
}

TEST_CASE("each part of a joined JSONL file may begin with a byte order mark of UTF-8", "[jsonl]") {
  TemporaryFolder folder;
  const std::string path =
      folder.write("d.jsonl", "\xEF\xBB\xBF{\"input_ids\":[1]}\n\xEF\xBB\xBF{\"input_ids\":[2]}\n");
  const TokenDataset data({path}, {});
  REQUIRE(data.documents() == 2);
  REQUIRE(data.locate(1).value == 2);
}

TEST_CASE("a JSONL file in UTF-16 or UTF-32 is named as such", "[jsonl]") {
  TemporaryFolder folder;
  const std::string line = "{\"input_ids\": [1, 2]}\r\n";
  const auto wide = [&](size_t width, size_t at, std::string text) {
    for (const char c : line) {
      std::string unit(width, '\0');
      unit[at] = c;
      text += unit;
    }
    return text;
  };
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {wide(2, 0, "\xFF\xFE"), "UTF-16 (little-endian)", "UTF-16LE"},
      {wide(2, 0, ""), "UTF-16 (little-endian)", "UTF-16LE"},
      {wide(2, 1, "\xFE\xFF"), "UTF-16 (big-endian)", "UTF-16BE"},
      {wide(2, 1, ""), "UTF-16 (big-endian)", "UTF-16BE"},
      {wide(4, 0, ""), "UTF-32 (little-endian)", "UTF-32LE"},
      {wide(4, 3, ""), "UTF-32 (big-endian)", "UTF-32BE"},
      {wide(4, 0, std::string("\xFF\xFE\0\0", 4)), "UTF-32 (little-endian)", "UTF-32LE"}};
  for (const auto& [text, name, tool] : cases) {
    const std::string path = folder.write("d.jsonl", text);
    REQUIRE(error_text_of([&] { TokenDataset({path}, {}); }) ==
            path + ": is " + name +
                ", expected UTF-8\n  remedy: convert it to UTF-8, for example: iconv -f " + tool +
                " -t UTF-8 OLD > NEW");
  }
}

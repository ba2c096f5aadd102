#include "data/conversations.h"

#include <optional>

#include "data/sidecar.h"
#include "fixtures.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

/// Writes only the .json of a data set; returns the data set's path.
std::string write_sidecar(const testing::TemporaryFolder& folder, const std::string& name,
                          int64_t trained, std::optional<int64_t> conversations) {
  Sidecar side;
  side.statistics = {
      .tokens = 10, .documents = 2, .trained_tokens = trained, .min_id = 0, .max_id = 5};
  side.conversations = conversations;
  folder.write(name + ".json", sidecar_text(side));
  return folder / name;
}

}  // namespace

TEST_CASE("the counts of prepare_data.py say whether a data set holds conversations") {
  const testing::TemporaryFolder folder;
  const std::string chats = write_sidecar(folder, "chats", 10, 2),
                    text = write_sidecar(folder, "text", 4, 0);
  CHECK(holds_conversations({chats}));
  CHECK(holds_conversations({chats + ".bin"}));
  CHECK_FALSE(holds_conversations({text}));
  CHECK(holds_conversations({text, chats}));
  CHECK_FALSE(holds_conversations({}));
}

TEST_CASE(
    "without the counts of prepare_data.py, a data set holds conversations if it has tokens that "
    "are not trained on") {
  const testing::TemporaryFolder folder;
  CHECK(holds_conversations({write_sidecar(folder, "older", 4, {})}));
  CHECK_FALSE(holds_conversations({write_sidecar(folder, "older-text", 10, {})}));
  folder.write("raw.bin", "");
  CHECK_FALSE(holds_conversations({folder / "raw.bin"}));
  folder.write("raw.mask", "");
  CHECK(holds_conversations({folder / "raw.bin"}));
  const std::string masked = R"({"input_ids": [1, 2], "labels": [-100, 2]})";
  CHECK(holds_conversations({folder.write("a.jsonl", masked + "\n")}));
  CHECK_FALSE(holds_conversations({folder.write("b.jsonl", "{\"input_ids\": [1, 2]}\n")}));
}

TEST_CASE(
    "a JSONL file is recognized as its reader reads it: after a byte order mark and blank lines, "
    "by data.format and by prefix") {
  const testing::TemporaryFolder folder;
  const std::string masked = R"({"input_ids": [1, 2], "labels": [-100, 2]})", mark = "\xEF\xBB\xBF";
  CHECK(holds_conversations({folder.write("mark.jsonl", mark + masked + "\n")}));
  CHECK(holds_conversations({folder.write("blank.jsonl", "\n \t\r\n" + masked)}));
  CHECK(holds_conversations({folder.write("both.jsonl", mark + "\n" + masked)}));
  CHECK_FALSE(holds_conversations({folder.write("nothing.jsonl", mark + "\n\n")}));
  for (const char* name : {"a.ndjson", "a.json"}) {
    const std::string path = folder.write(name, masked + "\n" + masked + "\n");
    CHECK(holds_conversations({path}, DataFormat::kJsonl));
    CHECK_FALSE(holds_conversations({path}));  // the reader refuses it as well
  }
  CHECK(holds_conversations({folder / "mark"}));
}

TEST_CASE("a prefix with a dot names the files of its own data set") {
  const testing::TemporaryFolder folder;
  write_sidecar(folder, "chats", 10, 0);  // for other data
  folder.write("chats.v1.bin", "");
  CHECK_FALSE(holds_conversations({folder / "chats.v1"}));
  folder.write("chats.v1.mask", "");
  CHECK(holds_conversations({folder / "chats.v1"}));
  Sidecar side;
  side.statistics = {
      .tokens = 100, .documents = 2, .trained_tokens = 100, .min_id = 0, .max_id = 5};
  side.conversations = 2;
  side.longest_conversation = 66;
  folder.write("chats.v2.json", sidecar_text(side));
  folder.write("chats.v2.bin", "");
  CHECK(holds_conversations({folder / "chats.v2"}));
  SequenceSetOptions options;
  options.packing = SequencePacking::kDocuments;
  options.sequence_length = 8;
  CHECK(check_conversation_lengths({folder / "chats.v1"}, options).empty());
  const std::vector<Error> errors = check_conversation_lengths({folder / "chats.v2"}, options);
  REQUIRE(errors.size() == 1);
  CHECK(errors.front().message().find(folder / "chats.v2.bin" +
                                      ": its longest conversation has 66 tokens") == 0);
}

TEST_CASE("a data set that cannot be read holds no conversations") {
  const testing::TemporaryFolder folder;
  CHECK_FALSE(holds_conversations({folder / "missing"}));
  CHECK_FALSE(holds_conversations({folder / "*.bin"}));
  folder.write("broken.json", R"({"format": "ftrun-data", "version": 7})");
  CHECK_FALSE(holds_conversations({folder / "broken.bin"}));
}

TEST_CASE(
    "conversations longer than a sequence are refused by packings that keep documents apart") {
  const testing::TemporaryFolder folder;
  Sidecar side;
  side.statistics = {.tokens = 100, .documents = 2, .trained_tokens = 50, .min_id = 0, .max_id = 5};
  side.conversations = 2;
  side.longest_conversation = 66;
  folder.write("chats.json", sidecar_text(side));
  const std::string chats = folder / "chats.bin";
  SequenceSetOptions options;
  options.packing = SequencePacking::kDocuments;
  const auto errors = [&](int64_t length, SequencePacking packing) {
    options.sequence_length = length;
    options.packing = packing;
    std::vector<std::string> texts;
    for (const Error& error : check_conversation_lengths({chats}, options))
      texts.emplace_back(error.what());
    return texts;
  };
  CHECK(errors(65, SequencePacking::kDocuments).empty());
  CHECK(errors(8, SequencePacking::kConcat).empty());
  CHECK(errors(64, SequencePacking::kDocuments) ==
        std::vector<std::string>{
            chats +
            ": its longest conversation has 66 tokens, more than the 65 that a sequence of "
            "data.sequence_length 64 needs (64 inputs and the last label): the rest would be "
            "trained on without what comes before it\n  remedy: set "
            "data.sequence_length to 65 or more, or prepare the data again with "
            "scripts/prepare_data.py --sequence-length 64 --too-long truncate, drop or split"});
  REQUIRE(errors(64, SequencePacking::kNone).size() == 1);
  CHECK(errors(64, SequencePacking::kNone).front().find("the rest would be cut off\n") !=
        std::string::npos);
  side.longest_conversation = std::nullopt;  // as another program may write it
  folder.write("chats.json", sidecar_text(side));
  CHECK(errors(64, SequencePacking::kDocuments).empty());
}

}  // namespace ftrun

#include "model/detokenizer.h"

#include <string>
#include <vector>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

// The byte-level alphabet: "Ġ" U+0120 is a space, "Ċ" U+010A a newline, and "Ã" "©" are the
// bytes of é.
const std::string kByteLevel = R"({
  "model": {"type": "BPE",
            "vocab": {"Hello": 0, "Ġworld": 1, "Ċ": 2, "Ã": 3, "©": 4, "日本": 5}},
  "added_tokens": [{"id": 6, "content": "<|end|>", "special": true},
                   {"id": 7, "content": "<tool>", "special": false}],
  "decoder": {"type": "ByteLevel", "add_prefix_space": true}})";

const std::string kSentencePiece = R"({
  "model": {"type": "BPE", "vocab": {"▁Hello": 0, "▁world": 1, "<0x0A>": 2, "<0xC3>": 3,
                                      "<0xA9>": 4, "<0xZZ>": 5}},
  "added_tokens": [{"id": 6, "content": "</s>", "special": true}],
  "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"},
                                                {"type": "Fuse"}, {"type": "Strip"}]}})";

std::string decode(const std::string& tokenizer, const std::vector<int32_t>& ids,
                   bool skip = true) {
  return Detokenizer::parse(tokenizer, "tokenizer.json").decode(ids, skip);
}

std::string tokenizer_refusal(const std::string& text) {
  try {
    Detokenizer::parse(text, "tokenizer.json");
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.what());
  }
  return "accepted";
}

TEST_CASE("byte-level tokens become their bytes") {
  CHECK(decode(kByteLevel, {0, 1, 2}) == "Hello world\n");
  CHECK(decode(kByteLevel, {3, 4}) == "é");
  CHECK(decode(kByteLevel, {5}) == "日本");  // not in the alphabet: unchanged
  CHECK(Detokenizer::parse(kByteLevel, "t").size() == 8);
}

TEST_CASE("sentencepiece tokens become text, with byte fallback") {
  CHECK(decode(kSentencePiece, {0, 1, 2, 3, 4}) == "Hello world\né");
  CHECK(decode(kSentencePiece, {5}) == "<0xZZ>");
}

TEST_CASE("merges are not needed to decode, and a token may have their name") {
  CHECK(decode(R"({"model": {"type": "BPE", "merges": [["a", "b"], 7, {"vocab": 1}],
                             "vocab": {"merges": 0, "Ġab": 1}, "unk_token": null},
                   "decoder": {"type": "ByteLevel"}})",
               {0, 1}) == "merges ab");
}

TEST_CASE("a tokenizer may list tens of thousands of added tokens") {
  std::string tokens;
  for (int id = 1; id <= 50'000; ++id)
    tokens += cat(id == 1 ? "" : ", ", R"({"content": "<)", id, R"(>", "id": )", id, "}");
  const std::string tokenizer =
      cat(R"({"added_tokens": [)", tokens, R"(], "model": {"vocab": {"a": 0}, "merges": [[1]]}})");
  CHECK(Detokenizer::parse(tokenizer, "t").size() == 50'001);
  CHECK(decode(tokenizer, {50'000, 0}) == "<50000>a");
}

TEST_CASE("special tokens are left out unless asked for") {
  CHECK(decode(kByteLevel, {0, 6, 7}) == "Hello<tool>");
  CHECK(decode(kByteLevel, {0, 6, 7}, false) == "Hello<|end|><tool>");
}

TEST_CASE("unknown token ids give no text, and incomplete characters a replacement character") {
  CHECK(decode(kByteLevel, {-1, 99, 2147483647}).empty());
  CHECK(decode(kByteLevel, {3}) == "\xEF\xBF\xBD");
  CHECK(decode(kByteLevel, {4, 0}) == "\xEF\xBF\xBDHello");
}

TEST_CASE("text that is not UTF-8 is converted to valid UTF-8") {
  CHECK(replace_not_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80") ==
        "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(replace_not_utf8("\xC0\x80") == bad + bad);                      // overlong
  CHECK(replace_not_utf8("\xED\xA0\x80") == bad + bad + bad);            // surrogate
  CHECK(replace_not_utf8("\xF4\x90\x80\x80") == bad + bad + bad + bad);  // above U+10FFFF
  CHECK(replace_not_utf8("x\xE2\x82") == "x" + bad);                     // cut short: one character
}

TEST_CASE("files that are not a BPE tokenizer are refused") {
  const std::string remedy =
      "\n  remedy: copy tokenizer.json from the model's original folder again";
  CHECK(tokenizer_refusal("{") == "4: tokenizer.json: not valid JSON near byte 2" + remedy);
  CHECK(tokenizer_refusal("[]") ==
        "4: tokenizer.json: no \"model\"; this is not a tokenizer.json" + remedy);
  CHECK(tokenizer_refusal("{\"model\": 1}") ==
        "4: tokenizer.json: no \"model\"; this is not a tokenizer.json" + remedy);
  CHECK(tokenizer_refusal(R"({"model": {"type": "Unigram", "vocab": []}})") ==
        "3: tokenizer.json: a tokenizer of type \"Unigram\" is not supported yet");
  CHECK(tokenizer_refusal(R"({"model": {"vocab": []}})") ==
        "4: tokenizer.json: model.vocab: expected an object of tokens and ids" + remedy);
  CHECK(tokenizer_refusal(R"({"model": {"vocab": {"a": -1}}})") ==
        "4: tokenizer.json: found token id -1; expected a whole number from 0 to 2147483647" +
            remedy);
  CHECK(tokenizer_refusal(R"({"model": {"vocab": {"a": 4294967296}}})") ==
        "4: tokenizer.json: found token id 4294967296; expected a whole number from 0 to "
        "2147483647" +
            remedy);
  CHECK(tokenizer_refusal(R"({"model": {"vocab": {}}, "added_tokens": [{"id": 1}]})") ==
        "4: tokenizer.json: added_tokens: expected objects with id and content" + remedy);
  CHECK(tokenizer_refusal(R"({"model": {"vocab": {"a": 1e999}}})") ==
        "4: tokenizer.json: holds a number that does not fit into 64 bits" + remedy);
}

TEST_CASE("a damaged tokenizer is either read or refused, and never crashes the reader") {
  for (const std::string& text : {kByteLevel, kSentencePiece}) {
    for (size_t at = 0; at < text.size(); ++at) {
      for (char c : std::string("\"{}[]:1-\x80")) {
        std::string damaged = text;
        damaged[at] = c;
        const std::string result = tokenizer_refusal(damaged);
        if (result != "accepted" && result[0] != '4' && result[0] != '3')
          FAIL(at << ": " << result);
      }
    }
  }
}

}  // namespace
}  // namespace ftrun

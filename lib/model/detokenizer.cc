#include "model/detokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "model/config_reader.h"

namespace ftrun {
namespace {

using nlohmann::json;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Returns GPT-2's alphabet: printable bytes represent themselves, the other 68 are represented by
/// U+0100 and up, in order.
std::unordered_map<uint32_t, char> byte_alphabet() {
  std::unordered_map<uint32_t, char> alphabet;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    alphabet[printable ? byte : next++] = static_cast<char>(byte);
  }
  return alphabet;
}

std::string from_byte_level(std::string_view token) {
  static const auto kAlphabet = byte_alphabet();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint point = first_code_point(token.substr(at));
    const auto it = point.valid ? kAlphabet.find(point.value) : kAlphabet.end();
    if (it != kAlphabet.end()) {
      bytes += it->second;
    } else {
      bytes += token.substr(at, point.size);
    }
    at += point.size;
  }
  return bytes;
}

std::optional<char> fallback_byte(std::string_view token) {  // "<0x0A>"
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

std::string from_sentencepiece(std::string_view token) {
  constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
  if (const auto byte = fallback_byte(token)) return {*byte};
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const bool space = token.substr(at, kSpace.size()) == kSpace;
    out += space ? ' ' : token[at];
    at += space ? kSpace.size() : 1;
  }
  return out;
}

/// Returns whether the tokenizer's decoder, or one of the decoders in its sequence, has that type.
bool has_decoder(const json& root, std::string_view type) {
  const auto decoder = root.find("decoder");
  if (decoder == root.end() || !decoder->is_object()) return false;
  const auto is = [&](const json& one) {
    return one.is_object() && one.contains("type") && one["type"] == type;
  };
  if (is(*decoder)) return true;
  const auto list = decoder->find("decoders");
  if (list == decoder->end() || !list->is_array()) return false;
  for (const json& one : *list)
    if (is(one)) return true;
  return false;
}

constexpr const char* kCopyAgain = "copy tokenizer.json from the model's original folder again";

const json& vocabulary(const json& root, const std::string& where) {
  const auto model = root.is_object() ? root.find("model") : root.end();
  if (!root.is_object() || model == root.end() || !model->is_object())
    throw Error(ExitCode::kBadInput, cat(where, ": no \"model\"; this is not a tokenizer.json"),
                kCopyAgain);
  const auto type = model->find("type");
  if (type != model->end() && *type != "BPE") {
    throw Error(ExitCode::kUnsupported,
                cat(where, ": a tokenizer of type ", found_text(*type), " is not supported yet"));
  }
  const auto vocab = model->find("vocab");
  if (vocab == model->end() || !vocab->is_object())
    throw Error(ExitCode::kBadInput,
                cat(where, ": model.vocab: expected an object of tokens and ids"), kCopyAgain);
  return *vocab;
}

int32_t token_id(const json& value, const std::string& where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX))
    return value.get<int32_t>();
  throw Error(ExitCode::kBadInput,
              cat(where, ": found token id ", found_text(value),
                  "; expected a whole number from 0 to ", INT32_MAX),
              kCopyAgain);
}

/// Parses a tokenizer.json without its merges, which decoding does not need and which would take
/// most of the memory.
json parse_tokenizer(std::string_view text, const std::string& where) {
  refuse_wide_encoding(text, where);
  try {
    return json::parse(text, [](int depth, json::parse_event_t event, json& parsed) {
      constexpr int kKeysOfModel = 2;  // tokens are deeper: one may be "merges"
      return event != json::parse_event_t::key || depth != kKeysOfModel || parsed != "merges";
    });
  } catch (const json::parse_error& error) {
    throw Error(ExitCode::kBadInput, cat(where, ": not valid JSON near byte ", error.byte),
                kCopyAgain);
  } catch (const json::exception&) {
    throw Error(ExitCode::kBadInput, cat(where, ": holds a number that does not fit into 64 bits"),
                kCopyAgain);
  }
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint point = first_code_point(bytes.substr(at));
    out += point.valid ? bytes.substr(at, point.size) : kReplacement;
    at += point.size;
  }
  return out;
}

Detokenizer Detokenizer::parse(std::string_view text, const std::string& where) {
  const json root = parse_tokenizer(text, where);
  const json& vocab = vocabulary(root, where);
  const bool byte_level = has_decoder(root, "ByteLevel");
  Detokenizer out;
  out.strip_first_space_ = !byte_level && has_decoder(root, "Strip");
  for (const auto& [token, id] : vocab.items())
    out.bytes_[token_id(id, where)] =
        byte_level ? from_byte_level(token) : from_sentencepiece(token);
  const auto added = root.find("added_tokens");
  if (added == root.end() || !added->is_array()) return out;
  for (const json& token : *added) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content") ||
        !token["content"].is_string()) {
      throw Error(ExitCode::kBadInput,
                  cat(where, ": added_tokens: expected objects with id and content"), kCopyAgain);
    }
    const int32_t id = token_id(token["id"], where);
    out.bytes_[id] = token["content"].get<std::string>();
    if (token.contains("special") && token["special"] == true) out.special_.insert(id);
  }
  return out;
}

std::string Detokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    const auto it = bytes_.find(id);
    if (it != bytes_.end() && !(skip_special && special_.contains(id))) bytes += it->second;
  }
  if (strip_first_space_ && !bytes.empty() && bytes.front() == ' ') bytes.erase(0, 1);
  return valid_utf8(bytes);
}

}  // namespace ftrun

#include "model/detokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

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

std::string decode_byte_level(std::string_view token) {
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

std::string decode_sentencepiece(std::string_view token) {
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

const json& find_vocabulary(const json& root, const std::string& where) {
  const auto model = root.is_object() ? root.find("model") : root.end();
  if (!root.is_object() || model == root.end() || !model->is_object())
    throw Error(ExitCode::kBadInput, cat(where, ": no \"model\"; this is not a tokenizer.json"),
                kCopyAgain);
  const auto type = model->find("type");
  if (type != model->end() && *type != "BPE") {
    throw Error(ExitCode::kUnsupported, cat(where, ": a tokenizer of type ", json_value_text(*type),
                                            " is not supported yet"));
  }
  const auto vocab = model->find("vocab");
  if (vocab == model->end() || !vocab->is_object())
    throw Error(ExitCode::kBadInput,
                cat(where, ": model.vocab: expected an object of tokens and ids"), kCopyAgain);
  return *vocab;
}

int32_t read_token_id(const json& value, const std::string& where) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT32_MAX))
    return value.get<int32_t>();
  throw Error(ExitCode::kBadInput,
              cat(where, ": found token id ", json_value_text(value),
                  "; expected a whole number from 0 to ", INT32_MAX),
              kCopyAgain);
}

/// TokenizerTree builds the tree of a tokenizer.json without its merges, which decoding does not
/// need and which would take most of the memory. A callback of json::parse() can leave them out
/// too, but makes the parser look through a whole list at the end of each object in it, and a
/// tokenizer may list tens of thousands of added tokens.
class TokenizerTree {
 public:
  json root;

  /// Return why sax_parse() failed: at which byte the text is no JSON, or that a number is too
  /// large.
  size_t bad_byte() const { return bad_byte_; }
  bool has_large_number() const { return has_large_number_; }

  bool null() { return add(json(nullptr)); }
  bool boolean(bool value) { return add(json(value)); }
  bool number_integer(json::number_integer_t value) { return add(json(value)); }
  bool number_unsigned(json::number_unsigned_t value) { return add(json(value)); }
  bool number_float(json::number_float_t value, const std::string&) { return add(json(value)); }
  bool string(std::string& value) { return add(json(std::move(value))); }
  bool binary(json::binary_t&) { return false; }  // JSON text has none
  bool start_object(size_t) { return open(json::object()); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    constexpr size_t kKeysOfModel = 2;  // tokens are deeper: one may be "merges"
    if (skipped_ > 0) return true;
    skips_value_ = open_.size() == kKeysOfModel && name == "merges";
    if (!skips_value_) element_ = &(*open_.back())[name];
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const json::exception& error) {
    bad_byte_ = byte;
    has_large_number_ = dynamic_cast<const json::parse_error*>(&error) == nullptr;
    return false;
  }

 private:
  bool add(json value) {
    if (skipped_ == 0 && !std::exchange(skips_value_, false)) place(std::move(value));
    return true;
  }
  bool open(json container) {
    if (skipped_ > 0 || std::exchange(skips_value_, false))
      ++skipped_;
    else
      open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    if (skipped_ > 0)
      --skipped_;
    else
      open_.pop_back();
    return true;
  }
  json* place(json value) {
    if (open_.empty()) return &(root = std::move(value));
    json& parent = *open_.back();
    if (!parent.is_array()) return &(*element_ = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  /// The objects and lists that have begun, from the outside in, and the place of the next value of
  /// the innermost object.
  std::vector<json*> open_;
  json* element_ = nullptr;
  /// Says that the next value is left out, and the number of objects and lists that have begun in
  /// one that is left out.
  bool skips_value_ = false;
  int64_t skipped_ = 0;
  size_t bad_byte_ = 0;
  bool has_large_number_ = false;
};

json parse_tokenizer(std::string_view text, const std::string& where) {
  refuse_wide_encoding(text, where);
  TokenizerTree tree;
  if (json::sax_parse(text.begin(), text.end(), &tree)) return std::move(tree.root);
  if (tree.has_large_number())
    throw Error(ExitCode::kBadInput, cat(where, ": holds a number that does not fit into 64 bits"),
                kCopyAgain);
  throw Error(ExitCode::kBadInput, cat(where, ": not valid JSON near byte ", tree.bad_byte()),
              kCopyAgain);
}

}  // namespace

std::string replace_not_utf8(std::string_view bytes) {
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
  const json& vocab = find_vocabulary(root, where);
  const bool byte_level = has_decoder(root, "ByteLevel");
  Detokenizer out;
  out.strip_first_space_ = !byte_level && has_decoder(root, "Strip");
  for (const auto& [token, id] : vocab.items())
    out.bytes_[read_token_id(id, where)] =
        byte_level ? decode_byte_level(token) : decode_sentencepiece(token);
  const auto added = root.find("added_tokens");
  if (added == root.end() || !added->is_array()) return out;
  for (const json& token : *added) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content") ||
        !token["content"].is_string()) {
      throw Error(ExitCode::kBadInput,
                  cat(where, ": added_tokens: expected objects with id and content"), kCopyAgain);
    }
    const int32_t id = read_token_id(token["id"], where);
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
  return replace_not_utf8(bytes);
}

}  // namespace ftrun

#include "comm/store_text.h"

#include <algorithm>
#include <string_view>

#include "base/rank_error.h"
#include "comm/store_protocol.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

enum class StoredKind : char { kText = '=', kParts = '#', kFailure = '!' };

/// The number of values that one request reads; its answer has at most 256 MiB.
constexpr size_t kAtATime = 64;

std::string part_key(const std::string& key, size_t part) {
  return cat(key, "/part/", part);
}

size_t count_parts(size_t bytes) {
  return bytes <= kPartBytes ? 0 : (bytes + kPartBytes - 1) / kPartBytes;
}

std::vector<uint8_t> encode_value(StoredKind kind, const std::string& content) {
  std::vector<uint8_t> value(1, static_cast<uint8_t>(kind));
  value.insert(value.end(), content.begin(), content.end());
  return value;
}

std::string read_parts(c10d::Store& store, const std::string& key, size_t count) {
  std::string text;
  for (size_t part = 0; part < count; ++part) text += text_of(store.get(part_key(key, part)));
  return text;
}

[[noreturn]] void throw_failure(const std::string& text) {
  const auto fields = parse_fields(text);
  require(fields && fields->size() == 4, "a failure in the store has its parts");
  const auto field = [&](size_t which) { return std::string((*fields)[which]); };
  const Error error(static_cast<ExitCode>(std::stoi(field(0))), field(1), field(2));
  throw AbsentRankError(error,
                        field(3).empty() ? std::nullopt : std::optional(std::stoi(field(3))));
}

std::string decode_text(c10d::Store& store, const std::string& key,
                        const std::vector<uint8_t>& value) {
  require(!value.empty(), "a text in the store says what it is");
  const std::string content(value.begin() + 1, value.end());
  switch (static_cast<StoredKind>(value[0])) {
    case StoredKind::kText:
      return content;
    case StoredKind::kParts:
      return read_parts(store, key, std::stoul(content));
    case StoredKind::kFailure:
      throw_failure(content);
  }
  bug("a value in the store is not a text");
}

}  // namespace

std::vector<std::string> text_keys(const std::string& key, size_t bytes) {
  std::vector<std::string> keys;
  for (size_t part = 0; part < count_parts(bytes); ++part) keys.push_back(part_key(key, part));
  keys.push_back(key);
  return keys;
}

void write_text(c10d::Store& store, const std::string& key, const std::string& text) {
  const size_t count = count_parts(text.size());
  if (count == 0) return store.set(key, encode_value(StoredKind::kText, text));
  for (size_t part = 0; part < count; ++part)
    store.set(part_key(key, part), bytes_of(text.substr(part * kPartBytes, kPartBytes)));
  store.set(key, encode_value(StoredKind::kParts, std::to_string(count)));
}

std::vector<uint8_t> failure_value(const Error& error) {
  const auto* own = dynamic_cast<const AbsentRankError*>(&error);
  std::string fields;
  append_field(fields, std::to_string(static_cast<int>(error.code())));
  append_field(fields, error.message());
  append_field(fields, error.remedy());
  append_field(fields, own != nullptr && own->absent() ? std::to_string(*own->absent()) : "");
  return encode_value(StoredKind::kFailure, fields);
}

std::string read_text(c10d::Store& store, const std::string& key) {
  return decode_text(store, key, store.get(key));
}

std::vector<std::string> read_texts(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < keys.size(); begin += kAtATime) {
    const size_t end = std::min(begin + kAtATime, keys.size());
    const std::vector<std::string> batch(keys.begin() + static_cast<ptrdiff_t>(begin),
                                         keys.begin() + static_cast<ptrdiff_t>(end));
    const auto values = store.multiGet(batch);
    for (size_t i = 0; i < batch.size(); ++i)
      texts.push_back(decode_text(store, batch[i], values.at(i)));
  }
  return texts;
}

}  // namespace ftrun

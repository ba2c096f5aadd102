#include "comm/store_text.h"

#include <algorithm>
#include <string_view>

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

size_t parts_of(size_t bytes) {
  return bytes <= kPartBytes ? 0 : (bytes + kPartBytes - 1) / kPartBytes;
}

std::vector<uint8_t> value_of(StoredKind kind, const std::string& rest) {
  std::vector<uint8_t> value(1, static_cast<uint8_t>(kind));
  value.insert(value.end(), rest.begin(), rest.end());
  return value;
}

std::string joined_parts(c10d::Store& store, const std::string& key, size_t count) {
  std::string text;
  for (size_t part = 0; part < count; ++part) text += text_of(store.get(part_key(key, part)));
  return text;
}

[[noreturn]] void throw_failure(const std::string& text) {
  const auto fields = fields_of(text);
  require(fields && fields->size() == 4, "a failure in the store has its parts");
  const auto field = [&](size_t which) { return std::string((*fields)[which]); };
  const Error error(static_cast<ExitCode>(std::stoi(field(0))), field(1), field(2));
  throw ExchangeError(error, field(3).empty() ? std::nullopt : std::optional(std::stoi(field(3))));
}

std::string text_from(c10d::Store& store, const std::string& key,
                      const std::vector<uint8_t>& value) {
  require(!value.empty(), "a text in the store says what it is");
  const std::string rest(value.begin() + 1, value.end());
  switch (static_cast<StoredKind>(value[0])) {
    case StoredKind::kText:
      return rest;
    case StoredKind::kParts:
      return joined_parts(store, key, std::stoul(rest));
    case StoredKind::kFailure:
      throw_failure(rest);
  }
  bug("a value in the store is not a text");
}

}  // namespace

std::vector<std::string> text_keys(const std::string& key, size_t bytes) {
  std::vector<std::string> keys;
  for (size_t part = 0; part < parts_of(bytes); ++part) keys.push_back(part_key(key, part));
  keys.push_back(key);
  return keys;
}

void write_text(c10d::Store& store, const std::string& key, const std::string& text) {
  const size_t count = parts_of(text.size());
  if (count == 0) return store.set(key, value_of(StoredKind::kText, text));
  for (size_t part = 0; part < count; ++part)
    store.set(part_key(key, part), bytes_of(text.substr(part * kPartBytes, kPartBytes)));
  store.set(key, value_of(StoredKind::kParts, std::to_string(count)));
}

std::vector<uint8_t> failure_value(const Error& error) {
  const auto* own = dynamic_cast<const ExchangeError*>(&error);
  std::string fields;
  append_field(fields, std::to_string(static_cast<int>(error.code())));
  append_field(fields, error.message());
  append_field(fields, error.remedy());
  append_field(fields, own != nullptr && own->absent() ? std::to_string(*own->absent()) : "");
  return value_of(StoredKind::kFailure, fields);
}

std::string read_text(c10d::Store& store, const std::string& key) {
  return text_from(store, key, store.get(key));
}

std::vector<std::string> read_texts(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < keys.size(); begin += kAtATime) {
    const size_t end = std::min(begin + kAtATime, keys.size());
    const std::vector<std::string> some(keys.begin() + static_cast<ptrdiff_t>(begin),
                                        keys.begin() + static_cast<ptrdiff_t>(end));
    const auto values = store.multiGet(some);
    for (size_t i = 0; i < some.size(); ++i)
      texts.push_back(text_from(store, some[i], values.at(i)));
  }
  return texts;
}

}  // namespace ftrun

#include "checkpoint/json_strict.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <set>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/utf8.h"

namespace ftrun {
namespace {

constexpr int kDeepest = 32;

/// Formats the position of a byte. `byte` counts from 1; a byte past the end means that the text
/// ended too early.
std::string location_text(std::string_view text, const std::string& where, size_t byte) {
  const size_t at = std::max<size_t>(byte, 1);
  const std::string_view before = text.substr(0, std::min(at - 1, text.size()));
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t last = before.rfind('\n');
  return cat(where, ":", lines + 1, ":", last == std::string_view::npos ? at : at - last - 1);
}

[[noreturn]] void refuse_json(const std::string& message) {
  throw Error(ExitCode::kBadInput, message,
              "fetch or write the file again: it is damaged, or no known tool wrote it");
}

// KeyGuard sees every key while the parser builds the tree. A duplicate key can be noticed only
// then, because the tree keeps only one of them.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& where) : where_(where) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kDeepest) refuse_json(cat(where_, ": is nested deeper than ", kDeepest, " levels"));
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second)
        refuse_json(cat(where_, ": key \"", printable_text(key), "\" appears twice in one object"));
    }
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> open_;
};

const nlohmann::json& require_field(const nlohmann::json& object, const char* key,
                                    const std::string& where) {
  if (!object.is_object())
    refuse_json(cat(where, ": an object with field \"", key, "\" was expected"));
  const auto found = object.find(key);
  if (found == object.end()) refuse_json(cat(where, ": field \"", key, "\" is missing"));
  return *found;
}

[[noreturn]] void refuse_wrong_kind(const char* key, const std::string& where, const char* expected,
                                    const nlohmann::json& value) {
  refuse_json(cat(where, ": field \"", key, "\" must be ", expected, ", found ",
                  printable_text(value.dump())));
}

}  // namespace

nlohmann::json parse_json_strict(std::string_view text, const std::string& where) {
  refuse_wide_encoding(text, where);
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos)
    refuse_json(cat(location_text(text, where, nul + 1), ": holds a NUL byte"));
  try {
    KeyGuard guard(where);
    return nlohmann::json::parse(
        text.begin(), text.end(),
        [&guard](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          return guard(depth, event, parsed);
        });
  } catch (const nlohmann::json::parse_error& error) {
    refuse_json(cat(location_text(text, where, error.byte), ": is not valid JSON"));
  } catch (const nlohmann::json::exception&) {
    refuse_json(cat(where, ": is not valid JSON (a number is out of range)"));
  }
}

int64_t json_int(const nlohmann::json& object, const char* key, const std::string& where,
                 int64_t minimum) {
  const nlohmann::json& value = require_field(object, key, where);
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
  if (!value.is_number_integer() || too_large) refuse_wrong_kind(key, where, "an integer", value);
  const auto number = value.get<int64_t>();
  if (number < minimum)
    refuse_json(cat(where, ": field \"", key, "\" is ", number, ", but at least ", minimum,
                    " was expected"));
  if (number > kMaxJsonInt)
    refuse_json(cat(where, ": field \"", key, "\" is ", number, ", but at most ", kMaxJsonInt,
                    " was expected"));
  return number;
}

uint64_t json_unsigned(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = require_field(object, key, where);
  if (!value.is_number_unsigned()) refuse_wrong_kind(key, where, "an integer of 0 or more", value);
  return value.get<uint64_t>();
}

double json_number(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = require_field(object, key, where);
  if (!value.is_number()) refuse_wrong_kind(key, where, "a number", value);
  return value.get<double>();
}

std::string json_text(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& value = require_field(object, key, where);
  if (!value.is_string()) refuse_wrong_kind(key, where, "a text", value);
  return value.get<std::string>();
}

uint64_t json_hash(const nlohmann::json& object, const char* key, const std::string& where) {
  const std::string text = json_text(object, key, where);
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (result.ec != std::errc() || hex64(value) != text)
    refuse_wrong_kind(key, where, "16 hexadecimal digits", text);
  return value;
}

const nlohmann::json& json_array(const nlohmann::json& object, const char* key,
                                 const std::string& where) {
  const nlohmann::json& value = require_field(object, key, where);
  if (!value.is_array()) refuse_wrong_kind(key, where, "a list", value);
  return value;
}

const nlohmann::json& json_object(const nlohmann::json& object, const char* key,
                                  const std::string& where) {
  const nlohmann::json& value = require_field(object, key, where);
  if (!value.is_object()) refuse_wrong_kind(key, where, "an object", value);
  return value;
}

std::string printable_text(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  static constexpr size_t kLongest = 120;
  std::string out;
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return text.size() > kLongest ? out + "..." : out;
}

}  // namespace ftrun

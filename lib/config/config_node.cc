#include "config/config_node.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/secret.h"
#include "base/utf8.h"

namespace ftrun {
namespace {

constexpr size_t kLongestShown = 60;

bool one_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

ConfigNode float_node(Position at, const std::string& text, double value) {
  ConfigNode node{.kind = ConfigNodeKind::kFloat, .at = std::move(at)};
  node.number = value;
  node.text = text;
  return node;
}

/// Reads an integer into `value`; returns false if the text is not an integer or does not fit 64
/// bits.
bool read_int(const std::string& text, int64_t& value) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'o')) {
    base = text[1] == 'x' ? 16 : 8;
    begin += 2;
    if (*begin == '-') return false;
  } else if (begin < end && *begin == '+') {
    ++begin;
    if (begin < end && *begin == '-') return false;
  }
  const auto result = std::from_chars(begin, end, value, base);
  return begin < end && result.ec == std::errc() && result.ptr == end;
}

bool read_float(const std::string& text, double& value) {
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return false;
  if (text.find_first_of("0123456789") == std::string::npos) return false;
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  if (begin[0] == '-' && begin != text.data()) return false;
  const auto result = std::from_chars(begin, end, value);
  if (result.ptr != end) return false;
  if (result.ec == std::errc::result_out_of_range)
    value = text.find("e-") != std::string::npos || text.find("E-") != std::string::npos
                ? 0.0
                : std::copysign(std::numeric_limits<double>::infinity(), *begin == '-' ? -1 : 1);
  return true;
}

}  // namespace

const ConfigEntry* ConfigNode::find_entry(std::string_view key) const {
  for (const ConfigEntry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

ConfigEntry* ConfigNode::find_entry(std::string_view key) {
  return const_cast<ConfigEntry*>(std::as_const(*this).find_entry(key));
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  const ConfigEntry* found = find_entry(key);
  return found == nullptr ? nullptr : &found->value;
}

ConfigNode* ConfigNode::find(std::string_view key) {
  return const_cast<ConfigNode*>(std::as_const(*this).find(key));
}

void ConfigNode::erase(std::string_view key) {
  std::erase_if(entries, [&](const ConfigEntry& entry) { return entry.key == key; });
}

const ConfigNode* ConfigNode::at_path(std::string_view path) const {
  const size_t dot = path.find('.');
  const ConfigNode* inner = find(path.substr(0, dot));
  return inner == nullptr || dot == std::string_view::npos ? inner
                                                           : inner->at_path(path.substr(dot + 1));
}

void ConfigNode::erase_path(std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return erase(path);
  if (ConfigNode* inner = find(path.substr(0, dot)); inner != nullptr)
    inner->erase_path(path.substr(dot + 1));
}

ConfigNode ConfigNode::of_map(Position at) {
  return {.kind = ConfigNodeKind::kMap, .at = std::move(at)};
}

ConfigNode ConfigNode::of_text(Position at, std::string text) {
  ConfigNode node{.kind = ConfigNodeKind::kText, .at = std::move(at)};
  node.text = std::move(text);
  return node;
}

ConfigNode ConfigNode::of_bool(Position at, bool value) {
  ConfigNode node{.kind = ConfigNodeKind::kBool, .at = std::move(at), .boolean = value};
  node.text = value ? "true" : "false";
  return node;
}

ConfigNode ConfigNode::of_int(Position at, int64_t value) {
  ConfigNode node{.kind = ConfigNodeKind::kInt, .at = std::move(at), .integer = value};
  node.number = static_cast<double>(value);
  node.text = std::to_string(value);
  return node;
}

void mark_secrets(ConfigNode& root) {
  for (ConfigNode& item : root.items) {
    item.is_secret = root.is_secret;
    mark_secrets(item);
  }
  for (ConfigEntry& entry : root.entries) {
    entry.value.is_secret = root.is_secret || is_secret_name(entry.key);
    mark_secrets(entry.value);
  }
}

std::string value_text(const ConfigNode& node) {
  if (node.is_secret) return std::string(kHiddenSecret);
  switch (node.kind) {
    case ConfigNodeKind::kNull:
      return "null";
    case ConfigNodeKind::kList:
      return cat("a list of ", node.items.size(), node.items.size() == 1 ? " entry" : " entries");
    case ConfigNodeKind::kMap:
      return "a section";
    case ConfigNodeKind::kText:
      break;
    default:
      return node.text;
  }
  return "\"" + to_one_line(node.text.substr(0, kLongestShown)) +
         (node.text.size() > kLongestShown ? "…" : "") + "\"";
}

ConfigNode read_scalar(Position at, const std::string& text) {
  if (one_of(text, {"", "~", "null", "Null", "NULL"})) return {.at = std::move(at), .text = "null"};
  if (one_of(text, {"true", "True", "TRUE"})) return ConfigNode::of_bool(std::move(at), true);
  if (one_of(text, {"false", "False", "FALSE"})) return ConfigNode::of_bool(std::move(at), false);
  int64_t integer = 0;
  if (read_int(text, integer)) {
    ConfigNode node = ConfigNode::of_int(std::move(at), integer);
    node.text = text;
    return node;
  }
  double number = 0;
  if (read_float(text, number)) return float_node(std::move(at), text, number);
  const double infinity = std::numeric_limits<double>::infinity();
  if (one_of(text, {".inf", ".Inf", ".INF", "+.inf", "Infinity", "inf"}))
    return float_node(std::move(at), text, infinity);
  if (one_of(text, {"-.inf", "-Infinity"})) return float_node(std::move(at), text, -infinity);
  if (one_of(text, {".nan", ".NaN", ".NAN", "NaN"}))
    return float_node(std::move(at), text, std::numeric_limits<double>::quiet_NaN());
  ConfigNode node = ConfigNode::of_text(std::move(at), text);
  node.is_unquoted = true;
  return node;
}

std::string join_key(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

void merge_into(ConfigNode& base, const ConfigNode& over) {
  if (!base.is_map() || !over.is_map()) {
    base = over;
    return;
  }
  for (const ConfigEntry& entry : over.entries) {
    ConfigEntry* known = base.find_entry(entry.key);
    if (known == nullptr) {
      base.entries.push_back(entry);
    } else if (known->value.is_map() && entry.value.is_map()) {
      merge_into(known->value, entry.value);
    } else {
      *known = entry;
    }
  }
}

}  // namespace ftrun

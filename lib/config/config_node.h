#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/problem.h"

namespace ftrun {

struct ConfigEntry;

/// ConfigNodeKind is the type of a value in a JSON or YAML file.
enum class ConfigNodeKind { kNull, kBool, kInt, kFloat, kText, kList, kMap };

/// ConfigNode is a value of a JSON or YAML file with its position.
struct ConfigNode {
  ConfigNodeKind kind = ConfigNodeKind::kNull;
  Position at;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;  // of kInt too
  /// The content of a text; for other scalars the characters in the file.
  std::string text;
  /// Says whether the text was written without quotes (YAML); `on` and `1e-5x` may then have been
  /// meant as another type.
  bool is_unquoted = false;
  /// Says whether the node is below a key that names a secret; value_text() then hides it.
  bool is_secret = false;
  std::vector<ConfigNode> items;     // kList
  std::vector<ConfigEntry> entries;  // kMap, in the order written

  bool is_map() const { return kind == ConfigNodeKind::kMap; }
  /// Returns whether the value is left to resolve(): null or "auto".
  bool is_unset_or_auto() const {
    return kind == ConfigNodeKind::kNull || (kind == ConfigNodeKind::kText && text == "auto");
  }
  /// Finds the value at "a.b.c"; null if there is none.
  const ConfigNode* at_path(std::string_view path) const;
  /// Finds the entry of a key; null if there is none.
  const ConfigEntry* find_entry(std::string_view key) const;
  ConfigEntry* find_entry(std::string_view key);
  /// Finds the value of a key; null if there is none.
  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
  /// Erases an entry; does nothing if there is none.
  void erase(std::string_view key);
  /// Erases the key "a.b.c"; the sections stay.
  void erase_path(std::string_view path);

  static ConfigNode of_map(Position at);
  static ConfigNode of_text(Position at, std::string text);
  static ConfigNode of_bool(Position at, bool value);
  static ConfigNode of_int(Position at, int64_t value);
};

struct ConfigEntry {
  std::string key;
  Position at;  // of the key
  ConfigNode value;
  /// The spelling in the file if `key` replaces it; else empty.
  std::string spelled_key;
  const std::string& spelling() const { return spelled_key.empty() ? key : spelled_key; }
};

/// Marks all values under a key that names a secret (base/secret.h).
void mark_secrets(ConfigNode& root);

/// Formats the value for a message: `"abc"`, `3`, `a list of 4 entries`, `a section`; long texts
/// are cut, secrets are hidden.
std::string value_text(const ConfigNode& node);

/// Reads a scalar without quotes by YAML 1.2's core schema (null, true, 17, 0x1f, 5e8, .inf); any
/// other is a text.
ConfigNode read_scalar(Position at, const std::string& text);

/// Joins "a" and "b" to "a.b"; returns "b" if the first is empty.
std::string join_key(const std::string& section, const std::string& key);

/// Merges `over` into `base`: sections are merged key by key, all other values are replaced.
void merge_into(ConfigNode& base, const ConfigNode& over);

}  // namespace ftrun

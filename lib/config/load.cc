#include "config/load.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/secret.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/accelerate.h"
#include "config/desugar.h"
#include "config/foreign_config.h"
#include "config/json_reader.h"
#include "config/limits.h"
#include "config/reader.h"
#include "config/yaml_reader.h"

namespace ftrun {
namespace {

/// Returns whether a file is JSON: by its name, else by its first character that is neither blank
/// nor in a comment, which is a brace in JSON.
bool looks_like_json(const std::string& name, const std::string& text) {
  const auto ends = [&](const char* extension) { return name.ends_with(extension); };
  if (ends(".json") || ends(".json5") || ends(".hjson") || ends(".jsonc")) return true;
  if (ends(".yaml") || ends(".yml")) return false;
  size_t i = 0;
  while (i < text.size()) {
    if (std::isspace(static_cast<unsigned char>(text[i])) != 0) {
      ++i;
    } else if (text[i] == '#' || text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else {
      return text[i] == '{' || text.compare(i, 2, "/*") == 0;
    }
  }
  return false;
}

std::optional<std::string> read_source(const std::string& file, Problems& problems) {
  try {
    return read_file(file, kMaxConfigBytes);
  } catch (const Error& e) {
    problems.error({file}, e.message(), e.remedy());
  }
  return std::nullopt;
}

/// Returns whether an override gives more than one value, or was probably meant to.
bool looks_like_section(const std::string& text) {
  return text.find_first_of("{[\n") != std::string::npos || text.find(": ") != std::string::npos;
}

/// Returns whether a value that looks like a list, a map or a quoted text is an existing path, or a
/// path in an existing folder ("[v2] run/out").
bool is_existing_path(const std::string& text) {
  if (text.empty() || std::string_view("[{\"'").find(text[0]) == std::string_view::npos)
    return false;
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(text).parent_path();
  return std::filesystem::exists(text, error) ||
         (!parent.empty() && std::filesystem::is_directory(parent, error));
}

/// Formats an override for messages: without a secret's value; a section, which may hold secrets,
/// only by its key; cut if it is long.
std::string override_text(const std::string& text) {
  constexpr size_t kLongestShown = 200;
  const size_t end = std::min(text.find_first_of("=: {[\n"), text.size());
  std::string shown = text;
  if (looks_like_section(text))
    shown = cat(text.substr(0, end), end < text.size() && text[end] == '=' ? "=" : "", "…");
  else if (end < text.size() && is_secret_name(text.substr(0, end)))
    shown = text.substr(0, end + 1) + std::string(kHiddenSecret);
  if (shown.size() > kLongestShown) shown = cat(shown.substr(0, kLongestShown), "…");
  return escape_not_utf8("--set " + shown);
}

Position position_of_byte(const std::string& name, std::string_view text, size_t at) {
  Position position{name, 1, 1};
  for (const char byte : text.substr(0, at)) advance_position(byte, position);
  return position;
}

ConfigNode parse_config_text(const std::string& name, const std::string& text, Problems& problems) {
  if (const std::string encoding = detect_wide_encoding(text); !encoding.empty()) {
    problems.error({name}, cat("the file is ", encoding, ", expected UTF-8"),
                   "save the file in UTF-8");
    return {};
  }
  if (text.find('\0') != std::string::npos) {
    problems.error({name}, "the file is binary, not a config");
    return {};
  }
  // Texts of a config are later written to JSON files, which must be UTF-8.
  if (const auto bad = find_invalid_utf8(text)) {
    problems.error(
        position_of_byte(name, text, *bad), "this byte is not UTF-8",
        "save the file in UTF-8; if the byte belongs to the name of a file, rename that file");
    return {};
  }
  ConfigNode root = looks_like_json(name, text) ? read_json(name, text, problems)
                                                : read_yaml(name, text, problems);
  mark_secrets(root);
  return root;
}

/// Sources merges each source into those read before. A file or an override is parsed (ConfigNode);
/// the adapter file that it names is included (ConfigSourceTree); its spellings are replaced by the
/// schema's keys (DesugaredTree). At the end all sources together are read (WrittenConfig).
class Sources {
 public:
  void add_text(const std::string& name, const std::string& text) {
    Problems source_problems;
    ConfigNode root = parse_config_text(name, text, source_problems);
    const bool readable = root.is_map();
    is_incomplete_ = is_incomplete_ || has_errors(source_problems.all());
    if (const auto foreign = find_foreign_config_problem(root);
        foreign && !has_errors(source_problems.all())) {
      problems_.error(foreign->at, foreign->message, foreign->remedy);
      is_incomplete_ = true;
      return;
    }
    add_problems(source_problems);
    if (!has_errors(source_problems.all()) && is_accelerate_file(root)) return add_accelerate(root);
    if (!readable && !has_errors(source_problems.all())) {
      if (root.kind == ConfigNodeKind::kNull)
        problems_.notice({name}, "is empty");
      else
        problems_.error(root.at, cat("expected a config with keys, found ", value_text(root)));
    }
    if (readable) merge_source(std::move(root));
  }

  void add_accelerate(const ConfigNode& root) {
    const ConfigNode* file = find_deepspeed_config_file(root);
    const ConfigNode deepspeed_config =
        file == nullptr ? ConfigNode::of_map(root.at)
                        : read_named_file(*file, "deepspeed_config_file",
                                          "correct the path, or pass that DeepSpeed "
                                          "config with --config instead of this file");
    if (!deepspeed_config.is_map()) return;
    Problems source_problems;
    ConfigNode config = translate_accelerate_file(root, deepspeed_config, source_problems);
    is_incomplete_ = is_incomplete_ || has_errors(source_problems.all());
    add_problems(source_problems);
    merge_source(deepspeed_config);
    merge_source(std::move(config));
  }

  void add_file(const std::string& file) {
    const auto text = read_source(file, problems_);
    if (text)
      add_text(file, *text);
    else
      is_incomplete_ = true;
  }

  void add_override(const std::string& text) {
    const Position at{override_text(text)};
    if (const auto bad = find_invalid_utf8(text)) {
      problems_.error(
          at, cat("byte ", *bad + 1, " is not UTF-8"),
          "write it in UTF-8; if the byte belongs to the name of a file, rename that file");
      is_incomplete_ = true;
      return;
    }
    const size_t equals = text.find('=');
    const std::vector<std::string> keys = split(text.substr(0, equals), '.');
    const bool blank =
        std::any_of(keys.begin(), keys.end(), [](const auto& k) { return k.empty(); });
    if (equals == std::string::npos || blank) {
      problems_.error(at, "expected section.key=value", "write for example --set train.steps=100");
      return;
    }
    if (keys.size() > static_cast<size_t>(kMaxSectionDepth)) {
      problems_.error(at, cat("nested deeper than ", kMaxSectionDepth, " levels"));
      return;
    }
    const std::string value_source = text.substr(equals + 1);
    ConfigNode value = is_existing_path(value_source)
                           ? ConfigNode::of_text({at.file, 0, 0}, value_source)
                           : read_yaml_value(at.file, value_source, problems_);
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      ConfigNode map = ConfigNode::of_map(at);
      map.entries.push_back({*key, at, std::move(value), ""});
      value = std::move(map);
    }
    mark_secrets(value);
    // A value that is read as one text may be a section with a syntax error, which may hold
    // secrets.
    ConfigNode* leaf = &value;
    for (const std::string& key : keys) leaf = leaf->find(key);
    if (leaf->kind == ConfigNodeKind::kText && looks_like_section(text)) leaf->is_secret = true;
    merge_source(std::move(value));
  }

  LoadResult finish() {
    LoadResult result{read_config(tree_, problems_), {}};
    result.written.origins.is_incomplete = is_incomplete_;
    result.problems = problems_.sorted();
    return result;
  }

 private:
  /// Makes the source of a parsed tree. `adapter: FOLDER` means the content of the folder's
  /// adapter_config.json, and that training continues from this adapter. An adapter that cannot be
  /// read is reported and left out.
  ConfigSourceTree with_adapter_file(ConfigNode root) {
    ConfigNode* adapter = root.find("adapter");
    if (ConfigNode* path =
            adapter != nullptr && adapter->is_map() ? adapter->find("path") : nullptr;
        path != nullptr && path->kind == ConfigNodeKind::kText)
      find_adapter(*path);
    if (adapter == nullptr || adapter->kind != ConfigNodeKind::kText) return {std::move(root)};
    if (adapter->text == "none") {
      // An empty section overrides the adapter of an earlier source.
      ConfigNode none = ConfigNode::of_map(adapter->at);
      none.entries.push_back({"type", adapter->at, ConfigNode::of_text(adapter->at, "none"), ""});
      *adapter = std::move(none);
      return {std::move(root)};
    }
    const bool is_file = adapter->text.ends_with(".json");
    ConfigNode adapter_name = *adapter, file = *adapter;
    const std::optional<std::string> adapter_folder =
        is_file ? std::nullopt : find_adapter(adapter_name);
    ConfigNode section;
    if (adapter_folder) file.text = *adapter_folder + "/adapter_config.json";
    if (is_file || adapter_folder)
      section = read_named_file(
          file, "adapter",
          "give a folder with an adapter_config.json, or write the adapter as a section");
    if (!section.is_map()) {
      root.erase("adapter");
      return {std::move(root)};
    }
    std::optional<ConfigNode> folder;
    if (!is_file)
      folder = ConfigNode::of_text(
          adapter->at, *adapter_folder != adapter_name.text
                           ? adapter_name.text
                           : std::filesystem::path(section.at.file).parent_path().string());
    *adapter = std::move(section);
    return {std::move(root), true, std::move(folder)};
  }

  /// Finds an adapter's folder. If `name` is a Hub name, it looks in the Hugging Face cache and
  /// adds the commit to the name. Reports a missing adapter and returns nothing.
  std::optional<std::string> find_adapter(ConfigNode& name) {
    namespace fs = std::filesystem;
    std::error_code error;
    if (fs::exists(fs::path(name.at.file).parent_path() / name.text, error)) return name.text;
    try {
      const ResolvedFolder found = find_adapter_folder(name.text);
      if (!found.commit.empty())
        name.text = cat(parse_hub_name(name.text)->repository, "@", found.commit);
      return found.folder;
    } catch (const Error& missing) {
      problems_.error(name.at, cat("adapter: ", missing.message()), missing.remedy());
      is_incomplete_ = true;
      return std::nullopt;
    }
  }

  /// Reads a file that a config names by a path relative to the working directory or to the
  /// config's folder; returns an empty node if it cannot be used.
  ConfigNode read_named_file(const ConfigNode& name, const std::string& key,
                             const std::string& remedy) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path beside = fs::path(name.at.file).parent_path() / name.text;
    const std::string path = fs::exists(name.text, error) ? name.text : beside.string();
    if (!fs::exists(path, error)) {
      problems_.error(name.at,
                      cat(key, ": ", name.text,
                          " is neither in the working directory nor in this file's folder"),
                      remedy);
      is_incomplete_ = true;
      return {};
    }
    const auto text = read_source(path, problems_);
    Problems source_problems;
    ConfigNode root = text ? parse_config_text(path, *text, source_problems) : ConfigNode{};
    add_problems(source_problems);
    is_incomplete_ = is_incomplete_ || !root.is_map() || has_errors(source_problems.all());
    if (text && !root.is_map() && !has_errors(source_problems.all()))
      problems_.error(root.at, cat("expected a config with keys, found ", value_text(root)));
    return root;
  }

  void add_problems(const Problems& source_problems) {
    for (const Problem& p : source_problems.all()) {
      if (p.severity == Severity::kError)
        problems_.error(p.at, p.message, p.remedy);
      else
        problems_.notice(p.at, p.message, p.remedy, p.key);
    }
  }

  void merge_source(ConfigNode root) {
    tree_.merge(desugar(with_adapter_file(std::move(root)), problems_), problems_);
  }

  DesugaredTree tree_;
  Problems problems_;
  bool is_incomplete_ = false;
};

}  // namespace

LoadResult load_config(const std::vector<std::string>& files,
                       const std::vector<std::string>& overrides) {
  Sources sources;
  for (const std::string& file : files) sources.add_file(file);
  for (const std::string& text : overrides) sources.add_override(text);
  return sources.finish();
}

LoadResult load_config_text(const std::string& name, const std::string& text,
                            const std::vector<std::string>& overrides) {
  return load_config_texts({{name, text}}, overrides);
}

LoadResult load_config_texts(const std::vector<ConfigText>& texts,
                             const std::vector<std::string>& overrides) {
  Sources sources;
  for (const ConfigText& config : texts) sources.add_text(config.name, config.text);
  for (const std::string& text : overrides) sources.add_override(text);
  return sources.finish();
}

Config recorded_config(const std::string& json) {
  return with_defaults(load_config_text("config.json", json).written);
}

}  // namespace ftrun

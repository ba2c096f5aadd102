#include "config/yaml_reader.h"

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "config/limits.h"

namespace ftrun {
namespace {

// The limit of text, in which an alias counts as often as it is used: a few lines could otherwise
// expand to millions of values or gigabytes of text.
constexpr size_t kMaxYamlText = 2 * static_cast<size_t>(kMaxConfigBytes);

/// Computes continuation[i]: the number of bytes before byte i that do not begin a UTF-8 character.
std::vector<int> count_continuations(const std::string& text) {
  std::vector<int> before(text.size() + 1, 0);
  for (size_t i = 0; i < text.size(); ++i) before[i + 1] = before[i] + ((text[i] & 0xC0) == 0x80);
  return before;
}

class YamlReader {
 public:
  YamlReader(const std::string& file, const std::string& text, Problems& problems)
      : file_(file), continuations_(count_continuations(text)), problems_(problems) {}

  ConfigNode convert_node(const YAML::Node& yaml, int depth) {
    const Position at = position_of(yaml.Mark());
    if (depth > kMaxSectionDepth)
      throw Error(ExitCode::kUsage, cat("nested deeper than ", kMaxSectionDepth, " levels"));
    if (++nodes_ > kMaxValues)
      throw Error(ExitCode::kUsage, cat("holds more than ", kMaxValues,
                                        " values, counting those that aliases repeat"));
    if (text_bytes_ > kMaxYamlText)
      throw Error(ExitCode::kUsage, cat("holds more than ", kMaxYamlText,
                                        " bytes of text, counting those that aliases repeat"));
    switch (yaml.Type()) {
      case YAML::NodeType::Map:
        return convert_map(yaml, at, depth);
      case YAML::NodeType::Sequence:
        return convert_list(yaml, at, depth);
      case YAML::NodeType::Scalar:
        return convert_scalar(yaml, at);
      default:
        return {.at = at, .text = "null"};
    }
  }

 private:
  // yaml-cpp counts columns in bytes, whereas editors count characters.
  Position position_of(const YAML::Mark& mark) const {
    if (mark.is_null()) return {file_, 1, 1};
    const auto continuations_before = [&](int at) {
      return continuations_[std::clamp<size_t>(static_cast<size_t>(std::max(at, 0)), 0,
                                               continuations_.size() - 1)];
    };
    const int continuations =
        continuations_before(mark.pos) - continuations_before(mark.pos - mark.column);
    return {file_, mark.line + 1, mark.column - continuations + 1};
  }

  ConfigNode convert_scalar(const YAML::Node& yaml, const Position& at) {
    text_bytes_ += yaml.Scalar().size();
    const std::string& tag = yaml.Tag();
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return ConfigNode::of_text(at, yaml.Scalar());
    if (tag != "?" && !tag.empty() && tag.rfind("tag:yaml.org,2002:", 0) != 0)
      problems_.error(at, cat("the tag ", tag, " is unknown"), "remove the tag");
    return read_scalar(at, yaml.Scalar());
  }

  ConfigNode convert_list(const YAML::Node& yaml, const Position& at, int depth) {
    ConfigNode list{.kind = ConfigNodeKind::kList, .at = at};
    for (const auto& item : yaml) list.items.push_back(convert_node(item, depth + 1));
    return list;
  }

  ConfigNode convert_map(const YAML::Node& yaml, const Position& at, int depth) {
    ConfigNode map = ConfigNode::of_map(at);
    std::vector<ConfigNode> merged;
    for (const auto& item : yaml) {
      if (!item.first.IsScalar()) {
        problems_.error(position_of(item.first.Mark()),
                        "a key must be a scalar, not a list or a map");
      } else if (item.first.Scalar() == "<<" && item.first.Tag() == "?") {
        collect_merged(convert_node(item.second, depth + 1), merged);
      } else {
        add(map, {item.first.Scalar(), position_of(item.first.Mark()),
                  convert_node(item.second, depth + 1)});
      }
    }
    // The map's own keys override merged ones, and earlier merged ones override later ones.
    for (const ConfigNode& source : merged)
      for (const ConfigEntry& entry : source.entries)
        if (map.find(entry.key) == nullptr) append(map, entry);
    return map;
  }

  void collect_merged(ConfigNode source, std::vector<ConfigNode>& merged) {
    if (source.is_map()) {
      merged.push_back(std::move(source));
    } else if (source.kind == ConfigNodeKind::kList) {
      for (ConfigNode& item : source.items) collect_merged(std::move(item), merged);
    } else {
      problems_.error(source.at,
                      cat("the merge key << expects a section, found ", value_text(source)));
    }
  }

  void append(ConfigNode& map, ConfigEntry entry) {
    if (map.entries.size() == kMaxKeys)
      throw Error(ExitCode::kUsage, cat("a section holds more than ", kMaxKeys, " keys (line ",
                                        entry.at.line, "): is this a config?"));
    map.entries.push_back(std::move(entry));
  }

  void add(ConfigNode& map, ConfigEntry entry) {
    if (entry.key.size() > kMaxKeyBytes)
      throw Error(ExitCode::kUsage,
                  cat("the key in line ", entry.at.line, " has ", entry.key.size(),
                      " bytes; the limit is ", kMaxKeyBytes, ": is this a config?"));
    for (const ConfigEntry& known : map.entries)
      if (known.key == entry.key) {
        problems_.error(
            entry.at,
            cat("the key \"", entry.key, "\" is written twice (first at line ", known.at.line, ")"),
            "keep one of the two");
        return;
      }
    append(map, std::move(entry));
  }

  const std::string& file_;
  const std::vector<int> continuations_;
  Problems& problems_;
  int nodes_ = 0;
  size_t text_bytes_ = 0;
};

/// Returns the remedy for a syntax error. yaml-cpp reports tabs as "end of map not found", one line
/// late.
std::string tab_remedy(const std::string& text) {
  return text.find("\n\t") != std::string::npos ? "indent with spaces: YAML allows no tabs there"
                                                : "look at this line and the one above it";
}

/// DocumentStarts finds where documents begin.
class DocumentStarts : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> marks;

  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// Finds the beginnings of at most the first two documents. It does not look for all: if a document
/// begins with a character that cannot begin a value (a comma), yaml-cpp 0.7 consumes nothing and
/// finds another document at the same position, forever.
std::vector<YAML::Mark> find_first_documents(const std::string& text) {
  std::istringstream input(text);
  YAML::Parser parser(input);
  DocumentStarts starts;
  while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) continue;
  return starts.marks;
}

/// Replaces all positions by that of the override, which has no lines.
void set_positions(ConfigNode& node, const Position& at) {
  node.at = at;
  for (ConfigNode& item : node.items) set_positions(item, at);
  for (ConfigEntry& entry : node.entries) {
    entry.at = at;
    set_positions(entry.value, at);
  }
}

}  // namespace

ConfigNode read_yaml(const std::string& file, const std::string& text, Problems& problems) {
  try {
    const std::vector<YAML::Mark> documents = find_first_documents(text);
    if (documents.empty()) return ConfigNode::of_map({file, 1, 1});
    if (documents.size() > 1 && documents[0].pos == documents[1].pos)
      throw YAML::ParserException(documents[0], "no value begins with this");
    if (documents.size() > 1)
      problems.error({file, documents[1].line + 1, documents[1].column + 1},
                     "a second YAML document begins here, expected one in a file",
                     "give each its own file; --config may be repeated");
    return YamlReader(file, text, problems).convert_node(YAML::Load(text), 0);
  } catch (const YAML::Exception& e) {
    const Position at = e.mark.is_null() ? Position{file, 1, 1}
                                         : Position{file, e.mark.line + 1, e.mark.column + 1};
    problems.error(at, cat("not valid YAML: ", e.msg), tab_remedy(text));
  } catch (const Error& e) {
    problems.error({file, 1, 1}, e.message());
  }
  return {};
}

ConfigNode read_yaml_value(const std::string& source, const std::string& text, Problems& problems) {
  const bool flow =
      !text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos;
  if (!flow) return read_scalar({source, 0, 0}, text);
  Problems source_problems;
  ConfigNode node = read_yaml(source, text, source_problems);
  for (const Problem& p : source_problems.all()) problems.error({source, 0, 0}, p.message);
  set_positions(node, {source, 0, 0});
  return node;
}

}  // namespace ftrun

#include "config/write.h"

#include <algorithm>
#include <cctype>
#include <type_traits>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "config/config_node.h"

namespace ftrun {
namespace {

/// Formats a float. YAML 1.1 reads 1e-05 as a text, so a mantissa is written with a decimal point.
std::string float_text(double value) {
  std::string text = number_text(value);
  if (text == "inf") return ".inf";
  const size_t exponent = text.find('e');
  if (text.find('.') == std::string::npos)
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  return text;
}

/// Returns whether a text may be written without quotes: no YAML reader can take it for anything
/// else.
bool is_plain_word(const std::string& text) {
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0) return false;
  static const std::vector<std::string> kReserved{"true", "false", "null", "yes", "no", "on",
                                                  "off",  "y",     "n",    "nan", "inf"};
  std::string lower;
  for (char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.' &&
        c != '/')
      return false;
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return std::find(kReserved.begin(), kReserved.end(), lower) == kReserved.end();
}

std::string quote(const std::string& text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (byte < 0x20)
      out += "\\x", out += kHex[byte >> 4], out += kHex[byte & 15];
    else
      out += c;
  }
  return cat('"', out, '"');
}

template <typename T>
std::string list_text(const std::vector<T>& items) {
  std::vector<std::string> parts;
  for (const T& item : items) parts.push_back(yaml_text(FieldValue(item)));
  return cat("[", join(parts, ", "), "]");
}

bool is_zero(const FieldValue& value) {
  if (const auto* i = std::get_if<int64_t>(&value)) return *i == 0;
  if (const auto* d = std::get_if<double>(&value)) return *d == 0;
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) return list->empty();
  return false;
}

/// KeyLine is what a file says about a key: its value, and a comment or "".
struct KeyLine {
  std::string value, comment;
};
using KeyLines = std::map<const Field*, KeyLine>;

/// Formats a value; if 0 means that the key is not written, 0 is formatted as null.
std::string field_value_text(const Field& field, const FieldValue& value) {
  return field.zero_means_unset && is_zero(value) ? "null" : yaml_text(value);
}

/// Returns whether the type of optimizer or scheduler in the config has the key.
bool suits_type(const Field& field, const Config& config) {
  if (field.types.empty()) return true;
  const std::string_view type = field.section == "optimizer.params"
                                    ? name_of(config.optimizer.type)
                                    : name_of(config.scheduler.type);
  return std::find(field.types.begin(), field.types.end(), type) != field.types.end();
}

/// Describes where a key's value comes from; "" for a default.
std::string source_text(const Field& field, const FieldValue& value, const Origins& origins) {
  const Origin* origin = origins.find(field.path());
  if (origin == nullptr) return value != field.default_value ? "derived" : "";
  const std::string position = to_one_line(to_text(origin->at));
  return origin->is_auto ? cat("auto at ", position) : position;
}

/// SectionWriter writes the keys that have a line, one section after another.
class SectionWriter {
 public:
  explicit SectionWriter(const KeyLines& lines) : lines_(lines) {}

  std::string write() {
    write_section("", 0);
    return std::move(out_);
  }

 private:
  void write_section(const std::string& path, int depth) {
    const std::string indent(depth * 2, ' ');
    for (const auto& [field, line] : lines_) {
      if (field->section != path) continue;
      out_ += cat(indent, field->name, ": ", line.value);
      if (!line.comment.empty()) out_ += cat("  # ", line.comment);
      out_ += "\n";
    }
    for (const Section& section : Schema::get().sections()) {
      const size_t dot = section.path.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : section.path.substr(0, dot);
      if (parent != path || !has_lines(section.path)) continue;
      if (depth == 0) out_ += "\n";
      out_ += cat(indent, section.path.substr(dot + 1), ":\n");
      write_section(section.path, depth + 1);
    }
  }

  bool has_lines(const std::string& path) const {
    return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) {
      const std::string& section = line.first->section;
      return section == path || section.starts_with(path + ".");
    });
  }

  const KeyLines& lines_;
  std::string out_;
};

}  // namespace

std::string yaml_text(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>)
          return v ? "true" : "false";
        else if constexpr (std::is_same_v<T, int64_t>)
          return std::to_string(v);
        else if constexpr (std::is_same_v<T, double>)
          return float_text(v);
        else if constexpr (std::is_same_v<T, std::string>)
          return is_plain_word(v) ? v : quote(v);
        else
          return list_text(v);
      },
      value);
}

std::string effective_yaml(const Config& config) {
  KeyLines lines;
  for (const Field& field : Schema::get().fields()) {
    if (!field.load || is_switched_off(config, field) || !suits_type(field, config)) continue;
    const FieldValue value = effective_value(config, field);
    lines[&field] = {field_value_text(field, value), source_text(field, value, config.origins)};
  }
  return SectionWriter(lines).write();
}

std::string written_yaml(const WrittenConfig& config,
                         const std::map<std::string, std::string>& comments) {
  KeyLines lines;
  for (const Field& field : Schema::get().fields()) {
    const std::string path = field.path();
    if (!field.load || config.origins.find(path) == nullptr) continue;
    const auto value = config.values().find(&field);
    const auto comment = comments.find(path);
    lines[&field] = {
        value == config.values().end() ? "auto" : field_value_text(field, value->second),
        comment == comments.end() ? "" : comment->second};
  }
  return SectionWriter(lines).write();
}

}  // namespace ftrun

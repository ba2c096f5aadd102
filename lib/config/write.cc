#include "config/write.h"

#include <algorithm>
#include <cctype>
#include <type_traits>

#include "base/error.h"
#include "base/text.h"
#include "config/config_node.h"

namespace ftrun {
namespace {

// Formats a float. YAML 1.1 reads 1e-05 as a text: a mantissa needs its point.
std::string float_text(double value) {
  std::string text = number_text(value);
  if (text == "inf") return ".inf";
  const size_t exponent = text.find('e');
  if (text.find('.') == std::string::npos)
    text.insert(exponent == std::string::npos ? text.size() : exponent, ".0");
  return text;
}

// Says whether a text may stand without quotes: no reader of YAML can take it for anything else.
bool plain_word(const std::string& text) {
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

std::string quoted(const std::string& text) {
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

class ConfigWriter {
 public:
  explicit ConfigWriter(const Config& config) : config_(config) {}
  /// Writes only the keys that the config gives itself.
  ConfigWriter(const Config& config, const std::map<std::string, std::string>& comments)
      : config_(config), comments_(&comments) {}

  std::string write() {
    write_section("", 0);
    return std::move(out_);
  }

 private:
  void write_section(const std::string& path, int depth) {
    for (const Field& field : schema_.fields())
      if (field.section == path && kept(field)) write_field(field, depth);
    for (const Section& section : schema_.sections()) {
      const size_t dot = section.path.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : section.path.substr(0, dot);
      if (parent != path || !has_kept(section.path)) continue;
      if (depth == 0) out_ += "\n";
      out_ += cat(std::string(depth * 2, ' '), section.path.substr(dot + 1), ":\n");
      write_section(section.path, depth + 1);
    }
  }

  bool kept(const Field& field) const {
    if (!field.load || is_switched_off(config_, field)) return false;
    if (comments_ != nullptr && config_.origins.find(field.path()) == nullptr) return false;
    if (field.types.empty()) return true;
    const std::string_view type = field.section == "optimizer.params"
                                      ? name_of(config_.optimizer.type)
                                      : name_of(config_.scheduler.type);
    return std::find(field.types.begin(), field.types.end(), type) != field.types.end();
  }

  bool has_kept(const std::string& path) const {
    return std::any_of(schema_.fields().begin(), schema_.fields().end(), [&](const Field& field) {
      const bool is_below = field.section == path || field.section.starts_with(path + ".");
      return is_below && kept(field);
    });
  }

  void write_field(const Field& field, int depth) {
    const FieldValue value = field.load(config_);
    const bool unset = field.zero_unset && is_zero(value);
    const bool open = comments_ != nullptr && config_.origins.is_auto(field.path());
    out_ += cat(std::string(depth * 2, ' '), field.name, ": ",
                open    ? "auto"
                : unset ? "null"
                        : yaml_text(value));
    if (const std::string from = comment(field, value); !from.empty()) out_ += cat("  # ", from);
    out_ += "\n";
  }

  std::string comment(const Field& field, const FieldValue& value) const {
    if (comments_ != nullptr) {
      const auto found = comments_->find(field.path());
      return found == comments_->end() ? "" : found->second;
    }
    const Origin* origin = config_.origins.find(field.path());
    if (origin != nullptr) {
      std::string place = to_text(origin->at);
      std::replace(place.begin(), place.end(), '\n', ' ');
      return origin->is_auto ? cat("auto at ", place) : place;
    }
    return value != field.default_value ? "derived" : "";
  }

  const Schema& schema_ = Schema::get();
  const Config& config_;
  /// Values by path; null: the whole config is written, with the places that values came from.
  const std::map<std::string, std::string>* comments_ = nullptr;
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
          return plain_word(v) ? v : quoted(v);
        else
          return list_text(v);
      },
      value);
}

std::string effective_yaml(const Config& config) {
  return ConfigWriter(config).write();
}

std::string given_yaml(const Config& config, const std::map<std::string, std::string>& comments) {
  return ConfigWriter(config, comments).write();
}

}  // namespace ftrun

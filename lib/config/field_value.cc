#include "config/field_value.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
std::string to_lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

namespace {

std::string words_text(const Field& field) {
  std::vector<std::string> words;
  for (const NumberKeyword& word : field.forms.words)
    if (word.remedy.empty()) words.push_back(word.word);
  return words.empty() ? "" : cat(" or one of ", join(words, ", "));
}

std::string range_text(const NumberBounds& bounds) {
  if (bounds.min && bounds.max)
    return cat(" from ", number_text(*bounds.min), bounds.excludes_max ? " to below " : " to ",
               number_text(*bounds.max));
  if (!bounds.min) return "";
  return cat(bounds.excludes_min ? " above " : " of at least ", number_text(*bounds.min));
}

bool in_range(const Field& field, double value) {
  return std::isfinite(value) && field.bounds.contain(value);
}

/// Converter turns one node into one value; problems name the key.
class Converter {
 public:
  Converter(const Field& field, std::string key, Problems& problems)
      : field_(field), key_(std::move(key)), problems_(problems) {}

  std::optional<FieldValue> value(const ConfigNode& node) {
    switch (field_.type) {
      case FieldType::kBool:
        return wrap(as_bool(node));
      case FieldType::kInt:
        return wrap(as_int(node));
      case FieldType::kFloat:
        return wrap(as_float(node));
      case FieldType::kText:
        return wrap(as_text(node));
      case FieldType::kChoice:
        return wrap(as_choice(node));
      case FieldType::kTextList:
        return wrap(as_texts(node));
      case FieldType::kIntList:
        return wrap(as_ints(node));
      case FieldType::kNumberPair:
        return wrap(as_numbers(node, 2));
      case FieldType::kNumberList:
        return wrap(as_numbers(node, node.items.size()));
      case FieldType::kAnyValue:
        return FieldValue(std::string());
    }
    return std::nullopt;
  }

 private:
  template <typename T>
  static std::optional<FieldValue> wrap(std::optional<T> value) {
    if (!value) return std::nullopt;
    return FieldValue(std::move(*value));
  }

  std::nullopt_t refuse(const ConfigNode& node, const std::string& more = "") {
    const bool placeholder =
        node.kind == ConfigNodeKind::kText &&
        (node.text.starts_with("${") || node.text.starts_with("{{") || node.text.starts_with("<"));
    problems_.error(
        node.at,
        cat(key_, ": expected ", expected_values_text(field_), ", found ", value_text(node), more),
        placeholder ? "fill in the template first" : "");
    return std::nullopt;
  }

  void note_reading(const ConfigNode& node, const std::string& read_as) {
    problems_.notice(node.at, cat(key_, ": ", value_text(node), " is read as ", read_as), "",
                     key_);
  }

  std::optional<bool> as_bool(const ConfigNode& node) {
    if (node.kind == ConfigNodeKind::kBool) return node.boolean;
    const std::string word = to_lower_case(node.text);
    const bool scalar = node.kind == ConfigNodeKind::kText || node.kind == ConfigNodeKind::kInt ||
                        node.kind == ConfigNodeKind::kFloat;
    static const std::vector<std::string> kYes{"true", "yes", "on", "1", "1.0", "y", "t"};
    static const std::vector<std::string> kNo{"false", "no", "off", "0", "0.0", "n", "f"};
    const auto among = [&](const std::vector<std::string>& words) {
      return scalar && std::find(words.begin(), words.end(), word) != words.end();
    };
    if (!among(kYes) && !among(kNo)) return refuse(node);
    note_reading(node, among(kYes) ? "true" : "false");
    return among(kYes);
  }

  // Reads the number in a text with quotes as if it had no quotes.
  ConfigNode unquoted(const ConfigNode& node) {
    if (node.kind != ConfigNodeKind::kText || node.is_unquoted) return node;
    ConfigNode inner = read_scalar(node.at, node.text);
    if (inner.kind != ConfigNodeKind::kInt && inner.kind != ConfigNodeKind::kFloat) return node;
    note_reading(node, cat("the number ", inner.text));
    return inner;
  }

  const NumberKeyword* word_of(const ConfigNode& node) const {
    if (node.kind != ConfigNodeKind::kText) return nullptr;
    for (const NumberKeyword& word : field_.forms.words)
      if (to_lower_case(word.word) == to_lower_case(node.text)) return &word;
    return nullptr;
  }

  std::optional<int64_t> as_int(const ConfigNode& as_spelled) {
    if (const NumberKeyword* word = word_of(as_spelled); word != nullptr) {
      if (word->remedy.empty()) return word->value;
      problems_.error(
          as_spelled.at,
          cat(key_, ": ", value_text(as_spelled), " corresponds to several keys in ftrun"),
          word->remedy);
      return std::nullopt;
    }
    const ConfigNode node = unquoted(as_spelled);
    if (node.kind == ConfigNodeKind::kBool) {
      if (!in_range(field_, node.boolean ? 1 : 0)) return refuse(node);
      note_reading(node, node.boolean ? "1" : "0");
      return node.boolean ? 1 : 0;
    }
    if (node.kind == ConfigNodeKind::kInt) {
      if (node.text.size() > 1 && node.text[0] == '0' &&
          std::isdigit(static_cast<unsigned char>(node.text[1])) != 0)
        note_reading(node, std::to_string(node.integer));
      if (!in_range(field_, node.number)) return refuse(node);
      return node.integer;
    }
    if (node.kind != ConfigNodeKind::kFloat) return refuse(node);
    // 2^63 itself does not fit into an int64_t.
    if (std::abs(node.number) >= 9223372036854775808.0)
      return refuse(node, " (it does not fit into 64 bits)");
    if (node.number != std::trunc(node.number) || !in_range(field_, node.number))
      return refuse(node);
    return static_cast<int64_t>(node.number);
  }

  std::optional<double> as_float(const ConfigNode& as_spelled) {
    const ConfigNode node = unquoted(as_spelled);
    const bool number = node.kind == ConfigNodeKind::kInt || node.kind == ConfigNodeKind::kFloat;
    if (!number || !in_range(field_, node.number)) return refuse(node);
    return node.number;
  }

  std::optional<std::string> as_text(const ConfigNode& node) {
    if (node.kind == ConfigNodeKind::kList || node.kind == ConfigNodeKind::kMap)
      return refuse(node);
    return node.text;
  }

  std::optional<std::string> as_choice(const ConfigNode& node) {
    if (node.kind != ConfigNodeKind::kText) return refuse(node);
    for (const std::string& choice : field_.choices)
      if (node.text == choice ||
          (field_.forms.ignores_case && to_lower_case(node.text) == to_lower_case(choice)))
        return choice;
    const std::string text = field_.forms.ignores_case ? to_lower_case(node.text) : node.text;
    for (const auto& [word, choice] : field_.forms.synonyms)
      if (text == word) return choice;
    return refuse(node, did_you_mean(closest_match(node.text, field_.choices)));
  }

  std::optional<std::vector<std::string>> as_texts(const ConfigNode& node) {
    std::vector<std::string> out;
    if (node.kind == ConfigNodeKind::kText) out.push_back(node.text);
    for (const ConfigNode& item : node.items) {
      if (item.kind != ConfigNodeKind::kText || item.text.empty()) return refuse(item);
      out.push_back(item.text);
    }
    const bool fits = node.kind == ConfigNodeKind::kText || node.kind == ConfigNodeKind::kList;
    if (!fits || (!out.empty() && out.front().empty())) return refuse(node);
    return out;
  }

  std::optional<std::vector<int64_t>> as_ints(const ConfigNode& node) {
    // ftrun's own list keys are empty by default, and a written config contains that default.
    const bool may_be_empty = field_.origin == KeyOrigin::kFtrun && !field_.zero_means_unset;
    if (node.kind != ConfigNodeKind::kList || (node.items.empty() && !may_be_empty))
      return refuse(node);
    std::vector<int64_t> out;
    for (const ConfigNode& item : node.items) {
      if (item.kind != ConfigNodeKind::kInt || !in_range(field_, item.number)) return refuse(item);
      out.push_back(item.integer);
    }
    return out;
  }

  std::optional<std::vector<double>> as_numbers(const ConfigNode& node, size_t count) {
    if (node.kind != ConfigNodeKind::kList || node.items.size() != count) return refuse(node);
    std::vector<double> out;
    for (const ConfigNode& as_spelled : node.items) {
      const ConfigNode item = unquoted(as_spelled);
      const bool number = item.kind == ConfigNodeKind::kInt || item.kind == ConfigNodeKind::kFloat;
      if (!number || !in_range(field_, item.number)) return refuse(item);
      out.push_back(item.number);
    }
    return out;
  }

  const Field& field_;
  const std::string key_;
  Problems& problems_;
};

}  // namespace

std::string expected_values_text(const Field& field) {
  switch (field.type) {
    case FieldType::kBool:
      return "true or false";
    case FieldType::kInt:
      return cat("a whole number", range_text(field.bounds), words_text(field));
    case FieldType::kFloat:
      return "a number" + range_text(field.bounds);
    case FieldType::kText:
      return "a text";
    case FieldType::kChoice:
      return "one of " + join(field.choices, ", ");
    case FieldType::kTextList:
      return "a text or a list of texts";
    case FieldType::kIntList:
      return "a list of whole numbers" + range_text(field.bounds);
    case FieldType::kNumberPair:
      return "a list of two numbers" + range_text(field.bounds);
    case FieldType::kNumberList:
      return "a list of numbers" + range_text(field.bounds);
    case FieldType::kAnyValue:
      return "anything";
  }
  return "";
}

std::optional<FieldValue> read_field_value(const Field& field, const ConfigNode& node,
                                           const std::string& key, Problems& problems) {
  return Converter(field, key, problems).value(node);
}

}  // namespace ftrun

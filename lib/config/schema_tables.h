#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace ftrun {

// The rows of the table, a function a file's worth of sections.
void declare_own_sections(Schema& schema);
void declare_adapter(Schema& schema);
void declare_quantization(Schema& schema);
void declare_deepspeed_top(Schema& schema);
void declare_optimizer(Schema& schema);
void declare_scheduler(Schema& schema);
void declare_precision(Schema& schema);
void declare_zero(Schema& schema);
void declare_deepspeed_sections(Schema& schema);
void declare_legacy(Schema& schema);

inline constexpr auto kDs = Vocabulary::kDeepSpeed;

// Between a member's type and FieldValue.
inline FieldValue to_value(bool v) {
  return v;
}
inline FieldValue to_value(int64_t v) {
  return v;
}
inline FieldValue to_value(double v) {
  return v;
}
inline FieldValue to_value(const std::string& v) {
  return v;
}
inline FieldValue to_value(const std::vector<std::string>& v) {
  return v;
}
inline FieldValue to_value(const std::vector<int64_t>& v) {
  return v;
}
inline FieldValue to_value(const std::vector<double>& v) {
  return v;
}
inline FieldValue to_value(const std::array<double, 2>& v) {
  return std::vector<double>{v[0], v[1]};
}
template <typename E>
requires std::is_enum_v<E> FieldValue to_value(E v) {
  return std::string(name_of(v));
}

template <typename T>
void from_value(T& member, const FieldValue& value) {
  if constexpr (std::is_enum_v<T>) {
    const auto& name = std::get<std::string>(value);
    for (size_t i = 0; i < EnumNames<T>::kNames.size(); ++i)
      if (EnumNames<T>::kNames[i] == name) member = static_cast<T>(i);
  } else if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    const auto& pair = std::get<std::vector<double>>(value);
    member = {pair.at(0), pair.at(1)};
  } else {
    member = std::get<T>(value);
  }
}

template <typename T>
constexpr FieldType field_type() {
  if (std::is_enum_v<T>) return FieldType::kChoice;
  if (std::is_same_v<T, bool>) return FieldType::kBool;
  if (std::is_same_v<T, int64_t>) return FieldType::kInt;
  if (std::is_same_v<T, double>) return FieldType::kFloat;
  if (std::is_same_v<T, std::string>) return FieldType::kText;
  if (std::is_same_v<T, std::vector<std::string>>) return FieldType::kTextList;
  if (std::is_same_v<T, std::vector<int64_t>>) return FieldType::kIntList;
  if (std::is_same_v<T, std::vector<double>>) return FieldType::kNumberList;
  return FieldType::kFloatList;
}

/// Adds the rows of one section whose keys live in the struct that `part` picks out of a Config.
template <typename Part>
class Rows {
 public:
  using Struct = std::remove_cvref_t<std::invoke_result_t<Part, Config&>>;

  Rows(Schema& schema, std::string path, Vocabulary vocabulary, Part part)
      : schema_(schema), path_(std::move(path)), vocabulary_(vocabulary), part_(part) {}

  template <typename T>
  Field& key(const char* name, T Struct::*member, const char* doc) {
    Field field = plain(name, field_type<T>(), doc);
    if constexpr (std::is_enum_v<T>)
      for (const std::string_view choice : EnumNames<T>::kNames)
        if (!choice.starts_with("torch.")) field.choices.emplace_back(choice);
    field.store = [part = part_, member](Config& c, const FieldValue& v) {
      from_value(part(c).*member, v);
    };
    field.load = [part = part_, member](const Config& c) { return to_value(part(c).*member); };
    field.default_value = field.load(Config{});
    return schema_.add(std::move(field));
  }

  /// A key that is checked and not kept.
  template <typename T>
  Field& unkept(const char* name, T default_value, const char* doc) {
    Field field = plain(name, field_type<T>(), doc);
    field.default_value = to_value(default_value);
    return schema_.add(std::move(field)).notice();
  }

  Field& unkept_choice(const char* name, std::vector<std::string> choices, const char* doc) {
    Field field = plain(name, FieldType::kChoice, doc);
    field.default_value = choices.front();
    field.choices = std::move(choices);
    return schema_.add(std::move(field)).notice();
  }

  /// A key of any content.
  Field& free(const char* name, const char* doc) {
    Field field = plain(name, FieldType::kFree, doc);
    field.default_value = std::string();
    return schema_.add(std::move(field)).notice();
  }

 private:
  Field plain(const char* name, FieldType type, const char* doc) const {
    Field field;
    field.section = path_;
    field.name = name;
    field.type = type;
    field.doc = doc;
    field.vocabulary = vocabulary_;
    return field;
  }

  Schema& schema_;
  std::string path_;
  Vocabulary vocabulary_;
  Part part_;
};

/// Announces a section and returns its rows.
template <typename Part>
Rows<Part> section(Schema& schema, Section head, Part part) {
  Rows<Part> rows(schema, head.path, head.vocabulary, part);
  schema.add_section(std::move(head));
  return rows;
}

/// For sections of which nothing is kept.
inline auto whole_config() {
  return [](auto& c) -> auto& {
    return c;
  };
}

}  // namespace ftrun

#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace ftrun {

// The functions below declare the rows of the schema; each file has the rows of some sections.
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

inline constexpr auto kDs = KeyOrigin::kDeepSpeed;

// Conversions between a member's type and FieldValue.
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
constexpr FieldType field_type() {
  if constexpr (std::is_enum_v<T>) {
    return FieldType::kChoice;
  } else if constexpr (std::is_same_v<T, bool>) {
    return FieldType::kBool;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return FieldType::kInt;
  } else if constexpr (std::is_same_v<T, double>) {
    return FieldType::kFloat;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return FieldType::kText;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return FieldType::kTextList;
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    return FieldType::kIntList;
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return FieldType::kNumberList;
  } else {
    static_assert(std::is_same_v<T, std::array<double, 2>>,
                  "a key's member has a type of FieldType");
    return FieldType::kNumberPair;
  }
}

/// SectionKeyRows adds the rows of one section. It holds the code that does not depend on the type
/// of the section's struct, and so is compiled only once.
class SectionKeyRows {
 public:
  SectionKeyRows(Schema& schema, const Section& section)
      : schema_(schema), path_(section.path), origin_(section.origin) {}

  /// Adds a key that is checked but not kept.
  template <typename T>
  Field& checked_only(const char* name, const T& default_value, const char* doc) {
    return add_checked_key(name, field_type<T>(), to_value(default_value), doc);
  }
  Field& checked_choice(const char* name, std::vector<std::string> choices, const char* doc);
  /// Adds a key that may have any content.
  Field& any_value(const char* name, const char* doc);

 protected:
  Field& add_stored_key(const char* name, FieldType type, std::span<const std::string_view> choices,
                        const char* doc, std::function<void(Config&, const FieldValue&)> store,
                        std::function<FieldValue(const Config&)> load);

 private:
  Field& add_checked_key(const char* name, FieldType type, FieldValue default_value,
                         const char* doc);
  Field make_field(const char* name, FieldType type, const char* doc) const;

  Schema& schema_;
  std::string path_;
  KeyOrigin origin_;
};

/// KeyRows adds rows whose keys are members of the struct that `part` selects from a Config.
template <typename Struct>
class KeyRows : public SectionKeyRows {
 public:
  using Accessor = Struct& (*)(Config&);

  KeyRows(Schema& schema, const Section& section, Accessor part)
      : SectionKeyRows(schema, section), part_(part) {}

  template <typename T>
  Field& key(const char* name, T Struct::*member, const char* doc) {
    std::span<const std::string_view> choices;
    if constexpr (std::is_enum_v<T>) choices = EnumNames<T>::kNames;
    return add_stored_key(
        name, field_type<T>(), choices, doc,
        [part = part_, member](Config& c, const FieldValue& v) {
          set_from_value(part(c).*member, v);
        },
        // The accessor only returns a reference and changes nothing, so one accessor serves const
        // and mutable Configs.
        [part = part_, member](const Config& c) {
          return to_value(part(const_cast<Config&>(c)).*member);
        });
  }

 private:
  Accessor part_;
};

template <typename Accessor>
auto rows_of(Schema& schema, const Section& section, Accessor part) {
  return KeyRows<std::remove_reference_t<std::invoke_result_t<Accessor, Config&>>>(schema, section,
                                                                                   part);
}

/// Adds a section and returns its rows.
template <typename Accessor>
auto section(Schema& schema, Section head, Accessor part) {
  auto rows = rows_of(schema, head, part);
  schema.add_section(std::move(head));
  return rows;
}

/// Adds a section whose keys are not kept.
inline SectionKeyRows section(Schema& schema, Section head) {
  SectionKeyRows rows(schema, head);
  schema.add_section(std::move(head));
  return rows;
}

/// Returns the rows of the top level.
template <typename Accessor>
auto top_level(Schema& schema, KeyOrigin origin, Accessor part) {
  return rows_of(schema, {.path = "", .origin = origin}, part);
}
inline KeyRows<Config> top_level(Schema& schema, KeyOrigin origin) {
  return top_level(schema, origin, [](Config& c) -> Config& { return c; });
}

}  // namespace ftrun

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// FieldType is the type of a key's value.
enum class FieldType {
  kBool,
  kInt,
  kFloat,
  kText,
  kChoice,
  kTextList,
  kIntList,
  kNumberPair,
  kNumberList,
  kAnyValue,  // any content
};

/// FieldValue is a key's value, independent of its struct: choices are held by their name, integers
/// as int64.
using FieldValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>,
                                std::vector<int64_t>, std::vector<double>>;

/// KeySupport describes how ftrun treats a key of the config.
enum class KeySupport {
  kApply,                // the key has its effect
  kNotice,               // checked, then ignored; reported if it differs from the default
  kRefuse,               // a feature ftrun does not have
  kRefuseUnlessDefault,  // the same, but only if the value differs from the default
};

/// KeyOrigin specifies which program defined a key.
enum class KeyOrigin { kFtrun, kDeepSpeed };

/// ResumeRule says what happens if a run that continues has another value of a key.
enum class ResumeRule {
  /// The run is refused: the key affects the losses of later steps, or the state with which these
  /// steps begin.
  kRefused,
  /// The change is reported. It affects nothing but rounding, if the ranks or the precision of
  /// states change, or it is compared by content, as model and data are.
  kMayChange,
  /// The key alone is not compared: its value is part of another key's value, which is compared.
  kPartOfOtherKey,
};

/// NumberKeyword is a word that means a number or, with a remedy, something that a single key
/// cannot express.
struct NumberKeyword {
  std::string word;
  int64_t value = 0;
  std::string remedy;
};

/// NumberBounds holds the smallest and the largest value of a number; nothing if there is no bound.
struct NumberBounds {
  std::optional<double> min, max;
  bool excludes_min = false;  // min itself is not allowed
  bool excludes_max = false;  // nor is max

  bool contain(double value) const {
    if (max && (excludes_max ? value >= *max : value > *max)) return false;
    return !min || (excludes_min ? value > *min : value >= *min);
  }
};

/// AlternativeForms says what a config may write instead of a value of the key's type.
struct AlternativeForms {
  bool allows_null = false;         // null = not written
  bool ignores_case = false;        // choices in upper case as well
  bool allows_named_lists = false;  // a map of names to lists (config/desugar.cc)
  bool allows_weights = false;      // a list of {path, weight} (config/desugar.cc)
  /// Words that mean whole numbers, in any case.
  std::vector<NumberKeyword> words;
  /// Synonyms of a choice (kChoice): other words in lower case, compared as the choices are, each
  /// with its choice.
  std::vector<std::pair<std::string, std::string>> synonyms;
};

/// Field is one key, with everything that reading, checking, documenting and printing it needs.
struct Field {
  std::string section;  // "" = top level
  std::string name;
  FieldType type = FieldType::kBool;
  std::vector<std::string> choices;
  NumberBounds bounds;
  AlternativeForms forms;
  std::string doc;
  std::string unit;
  KeyOrigin origin = KeyOrigin::kFtrun;
  KeySupport support = KeySupport::kApply;
  /// The reason why a key with kNotice has no effect, if its doc does not say it.
  std::string no_effect_reason;
  std::vector<std::string> aliases;
  bool zero_means_unset = false;            // the member's 0 means "not written": printed as null
  /// The largest number that is accepted like the default (kRefuseUnlessDefault).
  std::optional<double> largest_inactive;
  /// Says whether the word "auto" is a choice that is not among the member's values (or_auto()):
  /// resolve() then decides the value (Config::auto_keys).
  bool decides_auto = false;
  /// The types of optimizer.params and scheduler.params that have the key; empty = all types.
  std::vector<std::string> types;
  ResumeRule on_resume = ResumeRule::kRefused;
  FieldValue default_value;
  /// The text of the default in the docs, if it is not a fixed value.
  std::string default_text;
  std::function<void(Config&, const FieldValue&)> store;  // empty = checked and not kept
  std::function<FieldValue(const Config&)> load;

  std::string path() const { return section.empty() ? name : section + "." + name; }
  /// Returns whether a value is the "auto" that resolve() decides.
  bool is_auto(const FieldValue& value) const;

  // The functions below set members; the rows of the schema call them.
  Field& range(double low, double high) { return bounds.min = low, bounds.max = high, *this; }
  Field& at_least(double low) { return bounds.min = low, *this; }
  Field& from_to_below(double low, double high) {
    return bounds.excludes_max = true, range(low, high);
  }
  Field& greater_than(double low) { return bounds.min = low, bounds.excludes_min = true, *this; }
  Field& in_unit(const char* text) { return unit = text, *this; }
  Field& alias(const char* text) { return aliases.emplace_back(text), *this; }
  Field& notice(const char* reason = "") {
    return no_effect_reason = reason, support = KeySupport::kNotice, *this;
  }
  Field& implemented() { return support = KeySupport::kApply, *this; }
  Field& refuse() { return support = KeySupport::kRefuse, *this; }
  Field& refuse_unless_default() { return support = KeySupport::kRefuseUnlessDefault, *this; }
  Field& refuse_above(double largest) {
    return largest_inactive = largest, refuse_unless_default();
  }
  Field& or_auto();
  Field& or_null() { return forms.allows_null = true, *this; }
  Field& unset_is_zero() { return zero_means_unset = forms.allows_null = true, *this; }
  Field& word(const char* text, int64_t value) {
    return forms.words.push_back({text, value, ""}), *this;
  }
  Field& refused_word(const char* text, const char* remedy) {
    return forms.words.push_back({text, 0, remedy}), *this;
  }
  Field& or_weighted() { return forms.allows_weights = true, *this; }
  Field& or_named() { return forms.allows_named_lists = true, *this; }
  Field& synonym(const char* word, const char* choice) {
    return forms.synonyms.emplace_back(word, choice), *this;
  }
  Field& in_any_case() { return forms.ignores_case = true, *this; }
  Field& for_types(std::vector<std::string> names) { return types = std::move(names), *this; }
  Field& defaults_to(const char* text) { return default_text = text, *this; }
  Field& may_change() { return on_resume = ResumeRule::kMayChange, *this; }
  Field& part_of_other_key() { return on_resume = ResumeRule::kPartOfOtherKey, *this; }
};

/// Section is a key whose value is a map.
struct Section {
  std::string path;
  std::string doc;
  KeyOrigin origin = KeyOrigin::kFtrun;
  KeySupport support = KeySupport::kApply;
  bool nullable = false;
  /// Says whether the section may hold any keys: it is a feature of DeepSpeed that is recognized
  /// but not read.
  bool free_form = false;
  /// Says whether the section is free-form but must hold `enabled`.
  bool needs_enabled = false;
  /// The key that a plain value in place of the section sets; empty = a plain value is not allowed.
  std::string shorthand_key;
  /// Says whether a run that continues may change all keys of the section, and of those inside it
  /// (ResumeRule::kMayChange).
  bool may_change = false;
};

/// LegacyKey is a key of older or related programs that is accepted and has no effect.
struct LegacyKey {
  std::string section;
  std::string name;
  std::string reason;
};

/// Schema holds every key that ftrun accepts, in the order of the docs.
class Schema {
 public:
  /// Returns the schema; there is only one.
  static const Schema& get();

  const std::vector<Field>& fields() const { return fields_; }
  const std::vector<Section>& sections() const { return sections_; }
  const std::vector<LegacyKey>& legacy() const { return legacy_; }

  /// Finds a field by name or alias; null if the section has no such key.
  const Field* find(const std::string& section, const std::string& name) const;
  /// Returns the field of a path, which the schema must have: "zero_optimization.stage".
  const Field& at(const std::string& path) const;
  const Section* find_section(const std::string& path) const;
  const LegacyKey* find_legacy(const std::string& section, const std::string& name) const;
  /// Lists names of the keys and sections directly inside `section`, aliases included.
  std::vector<std::string> names_in(const std::string& section) const;
  /// Lists paths of every key and section with this name.
  std::vector<std::string> paths_named(const std::string& name) const;

  Field& add(Field field);
  void add_section(Section section);
  void add_legacy(std::string section, std::string name, std::string reason);

 private:
  std::vector<Field> fields_;
  std::vector<Section> sections_;
  std::vector<LegacyKey> legacy_;
  std::map<std::string, size_t> by_path_;  // aliases too
  friend void index_schema(Schema& schema);
};

void index_schema(Schema& schema);

/// Sets a member from its key's value; a word that is not one of the choices changes nothing.
template <typename T>
void set_from_value(T& member, const FieldValue& value) {
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

/// Returns the value of a key as the effective config contains it: "auto" if a later start has to
/// decide it again.
FieldValue effective_value(const Config& config, const Field& field);

/// Returns whether a config does not use the field's section at all; the list of keys that have an
/// effect then omits the field.
bool is_switched_off(const Config& config, const Field& field);

}  // namespace ftrun

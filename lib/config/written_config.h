#pragma once

#include <map>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "config/schema.h"

namespace ftrun {

/// WrittenConfig holds the keys that the sources of a config give. A key that is absent, or that a
/// rule has to decide ("auto"), has no value here. resolve() makes a Config from it, in which every
/// value is decided.
class WrittenConfig {
 public:
  /// The positions where keys and sections are written, including keys that are "auto".
  Origins origins;
  /// The commit of a model that was found by its name on the Hub, once it is known; not a key.
  std::string model_commit;

  /// Returns the values that are written, in the order of the schema.
  const std::map<const Field*, FieldValue>& values() const { return values_; }
  /// Returns the value that is written for a key, else the schema's default. `T` is the type of the
  /// key's member.
  template <typename T>
  T get(const std::string& path) const {
    const FieldValue& field_value = written_or_default(path);
    T value{};
    set_from_value(value, field_value);
    if constexpr (std::is_enum_v<T>)
      require(name_of(value) == std::get<std::string>(field_value), "the value is decided");
    return value;
  }
  /// Sets the value of a key; an earlier value is replaced.
  void write(const Field& field, FieldValue value, const Position& at);
  /// Removes a key, as if no source had it.
  void erase(const std::string& path);

 private:
  const FieldValue& written_or_default(const std::string& path) const;

  std::map<const Field*, FieldValue> values_;
};

/// Returns a Config with the written values, and the default of every other key, from which
/// resolve() begins. No rule has decided anything in it.
Config with_defaults(const WrittenConfig& written);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// ConfigFindings collects the problems of a config.json before it is refused.
struct ConfigFindings {
  /// The problems: "key: what was found; what is expected".
  std::vector<std::string> problems;
  /// The unsupported features: "key: feature".
  std::vector<std::string> unsupported;
};

/// WholeNumberRange is the allowed range of a whole number; its bounds keep every product of
/// dimensions below 2^63.
struct WholeNumberRange {
  int64_t low = 1;
  int64_t high = int64_t{1} << 20;
};

/// ConfigReader reads typed values from one JSON object. It records problems and continues, so that
/// all are reported at once. A read that fails returns its fallback (`low` of the range for
/// required numbers).
class ConfigReader {
 public:
  /// Reads `object` and records problems in `findings`; both must outlive this reader. `prefix`
  /// precedes keys in messages ("rope_scaling.").
  ConfigReader(const nlohmann::json& object, ConfigFindings& findings, std::string prefix = "");

  bool has(const char* key) const;
  /// Returns the value, or null when the key is absent or null.
  const nlohmann::json* find(const char* key) const;
  /// Returns all keys of the object, in order.
  std::vector<std::string> keys() const;
  /// Returns a reader of an inner object, which records problems under "key.".
  ConfigReader reader_of(const char* key) const;

  int64_t read_integer(const char* key, WholeNumberRange range);
  int64_t read_integer_or(const char* key, int64_t fallback, WholeNumberRange range);
  /// Reads a finite number; `positive` refuses zero and below.
  double read_number(const char* key, double fallback, bool positive);
  double read_number_or(const char* key, double fallback, bool positive);
  bool read_bool_or(const char* key, bool fallback);
  std::string read_text_or(const char* key, const std::string& fallback);
  std::vector<std::string> read_texts(const char* key);

  /// Returns whether no problem was recorded so far. After a problem, checks that compare keys
  /// would only repeat it.
  bool has_no_problems() const { return findings_.problems.empty(); }
  void add_problem(std::string_view key, const std::string& what);
  void add_unsupported(std::string_view key, const std::string& what);

 private:
  const nlohmann::json& object_;
  ConfigFindings& findings_;
  std::string prefix_;
};

/// Describes a JSON value for a message: short, one line, never the content of lists and objects.
std::string json_value_text(const nlohmann::json& value);

}  // namespace ftrun

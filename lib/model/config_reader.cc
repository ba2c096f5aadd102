#include "model/config_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr size_t kLongestShown = 60;

std::string range_text(WholeNumberRange range) {
  return cat("a whole number from ", range.low, " to ", range.high);
}

bool fits(const nlohmann::json& value, WholeNumberRange range) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return false;
  const auto whole = value.get<int64_t>();
  return whole >= range.low && whole <= range.high;
}

}  // namespace

std::string json_value_text(const nlohmann::json& value) {
  // Does not write the content of lists and objects: they may be nested a million deep, and writing
  // them recurses.
  if (value.is_array())
    return cat("a list of ", value.size(), value.size() == 1 ? " entry" : " entries");
  if (value.is_object()) return "an object";
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kLongestShown ? text : text.substr(0, kLongestShown) + "...";
}

ConfigReader::ConfigReader(const nlohmann::json& object, ConfigFindings& findings,
                           std::string prefix)
    : object_(object), findings_(findings), prefix_(std::move(prefix)) {}

bool ConfigReader::has(const char* key) const {
  return object_.contains(key);
}

const nlohmann::json* ConfigReader::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : object_.items()) out.push_back(key);
  return out;
}

ConfigReader ConfigReader::reader_of(const char* key) const {
  return {object_.at(key), findings_, cat(prefix_, key, ".")};
}

int64_t ConfigReader::read_integer(const char* key, WholeNumberRange range) {
  if (has(key) && object_.at(key).is_null()) {
    add_problem(key, "found null; expected " + range_text(range));
  } else if (!has(key)) {
    add_problem(key, "missing; expected " + range_text(range));
  }
  return read_integer_or(key, range.low, range);
}

int64_t ConfigReader::read_integer_or(const char* key, int64_t fallback, WholeNumberRange range) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (fits(*value, range)) return value->get<int64_t>();
  add_problem(key, cat("found ", json_value_text(*value), "; expected ", range_text(range)));
  return fallback;
}

double ConfigReader::read_number(const char* key, double fallback, bool positive) {
  if (!find(key)) {
    add_problem(key, cat(has(key) ? "found null" : "missing", "; expected a number",
                         positive ? " above 0" : ""));
  }
  return read_number_or(key, fallback, positive);
}

double ConfigReader::read_number_or(const char* key, double fallback, bool positive) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (std::isfinite(number) && (!positive || number > 0)) return number;
  }
  add_problem(key, cat("found ", json_value_text(*value), "; expected a number",
                       positive ? " above 0" : ""));
  return fallback;
}

bool ConfigReader::read_bool_or(const char* key, bool fallback) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  add_problem(key, cat("found ", json_value_text(*value), "; expected true or false"));
  return fallback;
}

std::string ConfigReader::read_text_or(const char* key, const std::string& fallback) {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (value->is_string()) return value->get<std::string>();
  add_problem(key, cat("found ", json_value_text(*value), "; expected a text"));
  return fallback;
}

std::vector<std::string> ConfigReader::read_texts(const char* key) {
  const nlohmann::json* value = find(key);
  if (!value) return {};
  std::vector<std::string> out;
  if (!value->is_array()) {
    add_problem(key, cat("found ", json_value_text(*value), "; expected a list of texts"));
    return out;
  }
  for (const nlohmann::json& item : *value) {
    if (!item.is_string()) {
      add_problem(key,
                  cat("entry ", out.size(), " is ", json_value_text(item), "; expected a text"));
      return {};
    }
    out.push_back(item.get<std::string>());
  }
  return out;
}

void ConfigReader::add_problem(std::string_view key, const std::string& what) {
  findings_.problems.push_back(cat(prefix_, key, ": ", what));
}

void ConfigReader::add_unsupported(std::string_view key, const std::string& what) {
  findings_.unsupported.push_back(cat(prefix_, key, ": ", what));
}

}  // namespace ftrun

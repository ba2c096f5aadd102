#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ftrun {

/// Parses JSON that may be hostile: UTF-8, no NUL byte, no key twice in an object, at most 32
/// levels deep. `where` (a path) begins every message, followed by line and column.
/// Error(kBadInput).
nlohmann::json parse_json_strict(std::string_view text, const std::string& where);

/// The most that counters of a file may hold: far from where adding to one overflows, and exact as
/// a double.
inline constexpr int64_t kLargestJsonInt = int64_t{1} << 53;

/// Fields of `object`; Error(kBadInput) "where: field "key" ..." when one is missing or of another
/// kind. Integers must be written as integers, of no more than kLargestJsonInt.
int64_t json_int(const nlohmann::json& object, const char* key, const std::string& where,
                 int64_t minimum = 0);
uint64_t json_unsigned(const nlohmann::json& object, const char* key, const std::string& where);
double json_number(const nlohmann::json& object, const char* key, const std::string& where);
std::string json_text(const nlohmann::json& object, const char* key, const std::string& where);
/// 16 hexadecimal digits, as hex64 writes them.
uint64_t json_hash(const nlohmann::json& object, const char* key, const std::string& where);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key,
                                 const std::string& where);
const nlohmann::json& json_object(const nlohmann::json& object, const char* key,
                                  const std::string& where);

/// A text of unknown origin, fit for a message: bytes outside printable ASCII are written as \xNN,
/// and what is longer than 120 bytes is cut.
std::string printable(std::string_view text);

}  // namespace ftrun

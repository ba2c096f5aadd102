#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ftrun {

/// Parses JSON from an untrusted source: it must be UTF-8 without NUL bytes, no key may occur twice
/// in an object, and it may be at most 32 levels deep. Throws Error(kBadInput), whose message
/// begins with `where` (a path), line and column.
nlohmann::json parse_json_strict(std::string_view text, const std::string& where);

/// The largest value of a counter in a file: adding to it cannot overflow, and a double represents
/// it exactly.
inline constexpr int64_t kMaxJsonInt = int64_t{1} << 53;

/// Returns a field of `object`; throws Error(kBadInput) "where: field "key" ..." if it is missing
/// or has another type. Integers must be written as integers; json_int() allows at most
/// kMaxJsonInt.
int64_t json_int(const nlohmann::json& object, const char* key, const std::string& where,
                 int64_t minimum = 0);
uint64_t json_unsigned(const nlohmann::json& object, const char* key, const std::string& where);
double json_number(const nlohmann::json& object, const char* key, const std::string& where);
std::string json_text(const nlohmann::json& object, const char* key, const std::string& where);
/// Reads 16 hexadecimal digits, as hex64 writes them.
uint64_t json_hash(const nlohmann::json& object, const char* key, const std::string& where);
const nlohmann::json& json_array(const nlohmann::json& object, const char* key,
                                 const std::string& where);
const nlohmann::json& json_object(const nlohmann::json& object, const char* key,
                                  const std::string& where);

/// Makes a text of unknown origin safe for a message: writes bytes outside printable ASCII as \xNN,
/// and cuts the text after 120 bytes.
std::string printable_text(std::string_view text);

}  // namespace ftrun

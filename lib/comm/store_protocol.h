#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

// What goes over a connection of the job's store (comm/store_server.h), in the byte order of the machine:
//
//   server   "ftrun-store-1\n", a random challenge of 32 bytes
//   client   a random challenge of 32 bytes, HMAC-SHA256(token, "client" + server's + client's challenge)
//   server   HMAC-SHA256(token, "server" + client's + server's challenge); or zeros, and it closes the connection
//   client   requests: u32 bytes, then StoreOperation (u8), u64 milliseconds to wait, and fields: u32 bytes each
//   server   for each request: u32 bytes, then StoreAnswer (u8) and fields

inline constexpr std::string_view kStoreGreeting = "ftrun-store-1\n";
inline constexpr size_t kChallengeBytes = 32;
inline constexpr size_t kProofBytes = 32;

/// Larger requests, keys and values are refused; more in the store as well.
inline constexpr size_t kMostRequestBytes = size_t{64} << 20;
inline constexpr size_t kMostKeyBytes = 4096;
inline constexpr size_t kMostFields = 1 << 16;
inline constexpr size_t kMostStoredBytes = size_t{2} << 30;

enum class StoreOperation : uint8_t {
  kSet = 1,     // key, value, key, value, ...
  kGet,         // keys: their values, as soon as all are there
  kWait,        // keys: nothing, as soon as all are there
  kCheck,       // keys: yes when all are there now
  kAdd,         // key, number: the sum
  kAppend,      // key, value
  kCompareSet,  // key, expected, wanted: the value after it
  kDelete,      // key: yes when it was there
  kCount,       // the number of keys
};
enum class StoreAnswer : uint8_t { kDone = 1, kNo, kTimeout, kRefused };

std::string client_proof(std::string_view token, std::string_view server, std::string_view client);
std::string server_proof(std::string_view token, std::string_view server, std::string_view client);

/// Fields one after another, each with its length before it.
void put_field(std::string& bytes, std::string_view field);
/// All fields of a text; nothing where they do not fill it.
std::optional<std::vector<std::string_view>> fields_of(std::string_view bytes);

template <typename T>
void put_number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T value;
  bytes.copy(reinterpret_cast<char*>(&value), sizeof value, at);
  return value;
}

}  // namespace ftrun

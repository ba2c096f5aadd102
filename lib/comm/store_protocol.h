#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

// The messages of a connection of the job's store (comm/store_server.h), in the byte order of the
// machine:
//
//   server   "ftrun-store-2\n", a random challenge of 32 bytes
//   client   a random challenge of 32 bytes, who it is (StoreMember, 60 bytes),
//            HMAC-SHA256(token, "client" + server's challenge + all of the client's before it)
// server   StoreAdmission (u8), who serves (StoreMember), HMAC-SHA256(token, "server" + client's +
//            server's challenge + the two); zeros where the client's proof is wrong. It closes the
//            connection unless the admission is kAdmitted
//   client   requests: u32 bytes, then StoreOperation (u8), u64 milliseconds to wait,
//            and fields: u32 bytes each
//   server   for each request: u32 bytes, then StoreAnswer (u8) and fields

inline constexpr std::string_view kStoreGreeting = "ftrun-store-2\n";
inline constexpr size_t kChallengeBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kInstanceBytes = 16;
inline constexpr size_t kMemberBytes = 3 * sizeof(uint32_t) + kInstanceBytes + 32;
/// Bytes that the client sends (kHelloBytes) and receives (kWelcomeBytes) before its first request.
inline constexpr size_t kHelloBytes = kChallengeBytes + kMemberBytes + kProofBytes;
inline constexpr size_t kWelcomeBytes = 1 + kMemberBytes + kProofBytes;

/// Limits of the store: larger requests and keys are refused, and so are values that would not fit
/// kMaxStoredBytes.
inline constexpr size_t kMaxRequestBytes = size_t{64} << 20;
inline constexpr size_t kMaxKeyBytes = 4096;
inline constexpr size_t kMaxFields = 1 << 16;
inline constexpr size_t kMaxStoredBytes = size_t{2} << 30;

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

/// StoreMember says who a client is: one rank of one start of one job. All connections of a rank
/// show the same member.
struct StoreMember {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  /// The number of restarts before this start.
  uint32_t attempt = 0;
  /// A random number that distinguishes two processes that call themselves the same rank.
  std::string instance = std::string(kInstanceBytes, '\0');
  /// RendezvousOptions::job; only its hash is sent.
  std::string job;
};

/// StoreAdmission is the server's decision about a client that knows the token: each rank is
/// admitted once per start, as one process.
enum class StoreAdmission : uint8_t {
  kAdmitted = 1,
  kOtherJob,
  kOtherWorld,
  kEarlierStart,
  kLaterStart,
  kSecondProcess
};

/// Encodes a member for the connection, kMemberBytes.
std::string encode_member(const StoreMember& member);
/// Compares the member that serves with a client that wants to join: returns the difference, or
/// kAdmitted if there is none.
StoreAdmission compare_members(std::string_view served, std::string_view joining);
/// Decodes a member; `job` stays empty, because only its hash was sent.
StoreMember decode_member(std::string_view bytes);

/// Makes the client's proof; `member` comes from encode_member(). Neither proof can be made without
/// the token, and a proof is valid only for its connection, rank and start.
std::string client_proof(std::string_view token, std::string_view server, std::string_view client,
                         std::string_view member);
std::string server_proof(std::string_view token, std::string_view server, std::string_view client,
                         StoreAdmission admission, std::string_view member);

/// Appends a field, preceded by its length.
void append_field(std::string& bytes, std::string_view field);
/// Returns all fields of a text; nothing if it is not a sequence of whole fields.
std::optional<std::vector<std::string_view>> parse_fields(std::string_view bytes);

template <typename T>
void append_number(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T read_number(std::string_view bytes, size_t offset) {
  T value;
  bytes.copy(reinterpret_cast<char*>(&value), sizeof value, offset);
  return value;
}

}  // namespace ftrun

#include "comm/store_protocol.h"

#include <initializer_list>

#include "base/hmac.h"

namespace ftrun {
namespace {

/// Computes the HMAC of the joined parts. Each part has a fixed size, so they need no separators.
std::string make_proof(std::string_view token, std::initializer_list<std::string_view> parts) {
  std::string message;
  for (const std::string_view part : parts) message.append(part);
  const Digest digest = hmac_sha256(token, message);
  return {digest.begin(), digest.end()};
}

}  // namespace

std::string encode_member(const StoreMember& member) {
  std::string bytes;
  for (const uint32_t number : {member.rank, member.world_size, member.attempt})
    append_number(bytes, number);
  bytes.append(member.instance, 0, kInstanceBytes);
  bytes.resize(kMemberBytes - sizeof(Digest));
  const Digest job = sha256(member.job);
  return bytes.append(job.begin(), job.end());
}

StoreMember decode_member(std::string_view bytes) {
  const auto number = [&](size_t which) {
    return read_number<uint32_t>(bytes, which * sizeof(uint32_t));
  };
  return {.rank = number(0),
          .world_size = number(1),
          .attempt = number(2),
          .instance = std::string(bytes.substr(3 * sizeof(uint32_t), kInstanceBytes)),
          .job = ""};
}

StoreAdmission compare_members(std::string_view served, std::string_view joining) {
  const StoreMember own = decode_member(served), other = decode_member(joining);
  const auto job = [](std::string_view bytes) {
    return bytes.substr(kMemberBytes - sizeof(Digest), sizeof(Digest));
  };
  if (job(served) != job(joining)) return StoreAdmission::kOtherJob;
  if (other.attempt != own.attempt)
    return other.attempt < own.attempt ? StoreAdmission::kEarlierStart
                                       : StoreAdmission::kLaterStart;
  return other.world_size != own.world_size || other.rank >= own.world_size
             ? StoreAdmission::kOtherWorld
             : StoreAdmission::kAdmitted;
}

std::string client_proof(std::string_view token, std::string_view server, std::string_view client,
                         std::string_view member) {
  return make_proof(token, {"client", server, client, member});
}

std::string server_proof(std::string_view token, std::string_view server, std::string_view client,
                         StoreAdmission admission, std::string_view member) {
  const char byte = static_cast<char>(admission);
  return make_proof(token, {"server", client, server, std::string_view(&byte, 1), member});
}

void append_field(std::string& bytes, std::string_view field) {
  append_number(bytes, static_cast<uint32_t>(field.size()));
  bytes.append(field);
}

std::optional<std::vector<std::string_view>> parse_fields(std::string_view bytes) {
  std::vector<std::string_view> fields;
  while (!bytes.empty()) {
    if (bytes.size() < sizeof(uint32_t) || fields.size() == kMaxFields) return std::nullopt;
    const auto size = read_number<uint32_t>(bytes, 0);
    bytes.remove_prefix(sizeof size);
    if (bytes.size() < size) return std::nullopt;
    fields.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return fields;
}

}  // namespace ftrun

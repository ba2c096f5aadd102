#include "comm/store_protocol.h"

#include "base/hmac.h"

namespace ftrun {
namespace {

std::string proof(std::string_view token, std::string_view side, std::string_view first, std::string_view second) {
  std::string message(side);
  message.append(first).append(second);
  const Digest digest = hmac_sha256(token, message);
  return {digest.begin(), digest.end()};
}

}  // namespace

std::string client_proof(std::string_view token, std::string_view server, std::string_view client) {
  return proof(token, "client", server, client);
}

std::string server_proof(std::string_view token, std::string_view server, std::string_view client) {
  return proof(token, "server", client, server);
}

void put_field(std::string& bytes, std::string_view field) {
  put_number(bytes, static_cast<uint32_t>(field.size()));
  bytes.append(field);
}

std::optional<std::vector<std::string_view>> fields_of(std::string_view bytes) {
  std::vector<std::string_view> fields;
  while (!bytes.empty()) {
    if (bytes.size() < sizeof(uint32_t) || fields.size() == kMostFields) return std::nullopt;
    const auto size = number_at<uint32_t>(bytes, 0);
    bytes.remove_prefix(sizeof size);
    if (bytes.size() < size) return std::nullopt;
    fields.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return fields;
}

}  // namespace ftrun

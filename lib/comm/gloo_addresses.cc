#include "comm/gloo_addresses.h"

#include <charconv>

#include "base/error.h"
#include "comm/store_value.h"

namespace ftrun {
namespace {

[[noreturn]] void throw_unsupported_call(const char* what) {
  bug(cat("Gloo asks its store for more than addresses (", what, ")"));
}

/// Reads the rank in a key "CONTEXT/RANK".
size_t rank_of(const std::string& key) {
  const char* const end = key.data() + key.size();
  size_t rank = 0;
  const auto [read, error] = std::from_chars(key.data() + key.rfind('/') + 1, end, rank);
  if (error != std::errc() || read != end) throw_unsupported_call(key.c_str());
  return rank;
}

}  // namespace

void GlooAddresses::set(const std::string& key, const std::vector<uint8_t>& value) {
  if (!addresses_.empty()) throw_unsupported_call(key.c_str());
  addresses_ = all_gather_(text_of(value));
  require(rank_of(key) < addresses_.size(), "a member of a group has its address there");
}

std::vector<uint8_t> GlooAddresses::get(const std::string& key) {
  const size_t rank = rank_of(key);
  require(rank < addresses_.size(), "an address of a group is that of a member");
  return bytes_of(addresses_[rank]);
}

c10::intrusive_ptr<c10d::Store> GlooAddresses::clone() {
  throw_unsupported_call("clone");
}
int64_t GlooAddresses::add(const std::string&, int64_t) {
  throw_unsupported_call("add");
}
bool GlooAddresses::deleteKey(const std::string&) {
  throw_unsupported_call("deleteKey");
}
bool GlooAddresses::check(const std::vector<std::string>&) {
  throw_unsupported_call("check");
}
int64_t GlooAddresses::getNumKeys() {
  throw_unsupported_call("getNumKeys");
}

}  // namespace ftrun

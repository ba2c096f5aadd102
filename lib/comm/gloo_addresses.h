#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

namespace ftrun {

/// GlooAddresses is the store that Gloo uses while a group connects. Each member of a group sets
/// one key, "CONTEXT/RANK", to its listening address, and then asks for the addresses of all others
/// one at a time: N * N requests. With this store the members exchange their addresses as texts
/// with a few requests each, and Gloo finds all addresses in its own process.
class GlooAddresses final : public c10d::Store {
 public:
  /// AllGatherTexts sends this member's address and returns the addresses of all, by rank in the
  /// group. Collective.
  using AllGatherTexts = std::function<std::vector<std::string>(const std::string& own)>;
  explicit GlooAddresses(AllGatherTexts all_gather) : all_gather_(std::move(all_gather)) {}

  /// Exchanges the address with the other members. Throws the exceptions of the all-gather.
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  c10::intrusive_ptr<Store> clone() override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;

 private:
  const AllGatherTexts all_gather_;
  std::vector<std::string> addresses_;
};

}  // namespace ftrun

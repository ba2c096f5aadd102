#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/owned_fd.h"
#include "comm/store_protocol.h"
#include "comm/store_server.h"

namespace ftrun {

/// StoreEndpoint specifies the address of the job's store, and the token that it asks for.
struct StoreEndpoint {
  std::string address;
  int port = 0;
  std::string token;
};

/// Returns whether rank 0 serves the store at `endpoint`: false if no server that knows the token
/// answers within `limit`.
bool serves_store(const StoreEndpoint& endpoint, std::chrono::milliseconds limit);

/// StoreLostError is thrown if the connection to the server of the job's store breaks.
struct StoreLostError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// JobStore is a client of the job's store (StoreServer). It sends one request at a time; several
/// threads take turns. Every call throws std::runtime_error if the server has ended, and waits
/// forever while the server is stopped.
class JobStore final : public c10d::Store {
 public:
  /// FindEndpoint returns the store's endpoint, or nothing while it is not known.
  using FindEndpoint = std::function<std::optional<StoreEndpoint>()>;
  /// Tries to connect until `deadline`. Each try calls `find_endpoint` for the store's endpoint
  /// (nothing: not known yet; std::runtime_error: not known yet, for this reason; Error: never).
  /// Throws std::runtime_error with the last reason. If `endpoint_may_change` is false,
  /// `find_endpoint` always returns the same endpoint, and a refused token throws at once. Throws
  /// Error(kUsage) at once if rank 0 does not accept `member` as one of its ranks. `served` is kept
  /// alive as long as this client. `record_failure` receives the reason why a try failed.
  JobStore(FindEndpoint find_endpoint, StoreMember member,
           std::chrono::steady_clock::time_point deadline, bool endpoint_may_change,
           std::shared_ptr<StoreServer> served = nullptr,
           const std::function<void(const std::string& why)>& record_failure = nullptr);

  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

  const StoreEndpoint& endpoint() const { return endpoint_; }

 private:
  struct StoreReply {
    StoreAnswer answer;
    std::string bytes;
    std::vector<std::string> fields;
  };
  StoreReply send_request(StoreOperation operation, const std::vector<std::string_view>& fields,
                          std::chrono::milliseconds timeout = std::chrono::milliseconds::max());
  StoreReply request_or_throw(StoreOperation operation, const std::vector<std::string_view>& fields,
                              size_t results,
                              std::chrono::milliseconds timeout = std::chrono::milliseconds::max());

  const StoreMember member_;
  StoreEndpoint endpoint_;
  OwnedFd fd_;
  std::mutex mutex_;
  std::shared_ptr<StoreServer> served_;
};

}  // namespace ftrun

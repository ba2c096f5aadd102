#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/owned_fd.h"
#include "comm/store_protocol.h"

namespace ftrun {

/// StoreServer is the job's store: keys and values that the ranks share, served by one thread of
/// rank 0's process. A client that cannot prove that it knows the job's token is dropped before
/// anything of it is read but kHelloBytes; the number and time of such clients are limited, so that
/// they keep no rank out. A client that knows it must be a rank of the same start of the same job,
/// and each rank is one process, which may have any number of connections.
class StoreServer {
 public:
  struct Limits {
    /// Connections that have not proved themselves; the oldest makes room for a new one.
    int max_unauthenticated = 128;
    /// The time that a proof may take.
    int64_t handshake_ms = 5000;
    /// The most connections: up to three of a rank.
    int members = 1 << 16;
  };

  /// Serves the rank `own` on `listening`, a socket that listens.
  StoreServer(OwnedFd listening, std::string token, const StoreMember& own, Limits limits);
  StoreServer(OwnedFd listening, std::string token, const StoreMember& own)
      : StoreServer(std::move(listening), std::move(token), own, Limits{}) {}
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Returns the number of peers that have proved themselves; refused(), of those that were
  /// dropped.
  int64_t admitted() const { return admitted_; }
  int64_t refused() const { return refused_; }
  /// Returns the number of requests that were answered.
  int64_t requests() const { return requests_; }
  /// Returns the number of stored keys; stored_bytes(), the bytes of keys and values; most_bytes(),
  /// the most bytes that were kept for the ranks at a time: stored, requested and not sent yet.
  int64_t keys() const { return keys_; }
  int64_t stored_bytes() const { return stored_bytes_; }
  int64_t most_bytes() const { return most_bytes_; }

 private:
  struct Loop;
  std::atomic<int64_t> admitted_ = 0;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<int64_t> keys_ = 0;
  std::atomic<int64_t> stored_bytes_ = 0;
  std::atomic<int64_t> most_bytes_ = 0;
  OwnedFd wake_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace ftrun

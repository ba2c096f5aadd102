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
/// rank 0's process. Of a client that has not proved that it knows the job's token, only
/// kHelloBytes are read. The number of such clients and the time that each has are limited, so that
/// they cannot keep ranks out. A client that knows the token must be a rank of the same start of
/// the same job, and all connections of a rank must come from one process.
class StoreServer {
 public:
  struct Limits {
    /// The maximum number of connections that have not proved themselves; a new one then replaces
    /// the oldest.
    int max_unauthenticated = 128;
    /// The time that a proof may take.
    int64_t handshake_ms = 5000;
    /// The maximum number of connections of ranks: each rank has up to three.
    int max_connections = 1 << 16;
  };

  /// Serves the job of rank `own_member` on `listening`, a socket that listens.
  StoreServer(OwnedFd listening, std::string token, const StoreMember& own_member, Limits limits);
  StoreServer(OwnedFd listening, std::string token, const StoreMember& own_member)
      : StoreServer(std::move(listening), std::move(token), own_member, Limits{}) {}
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// Returns the number of connections that have proved themselves; refused_connections() returns
  /// the number of those that were dropped.
  int64_t admitted_connections() const { return admitted_; }
  int64_t refused_connections() const { return refused_; }
  /// Returns the number of requests that were answered.
  int64_t answered_requests() const { return requests_; }
  /// Returns the number of stored keys; stored_bytes() returns the bytes of keys and values;
  /// peak_bytes() returns the maximum number of bytes that were kept at one time: stored, requested
  /// and not sent yet.
  int64_t stored_keys() const { return keys_; }
  int64_t stored_bytes() const { return stored_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Loop;
  std::atomic<int64_t> admitted_ = 0;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<int64_t> keys_ = 0;
  std::atomic<int64_t> stored_bytes_ = 0;
  std::atomic<int64_t> peak_bytes_ = 0;
  OwnedFd wake_;
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace ftrun

#pragma once

// Only this folder's sources include this header, because it includes c10d's.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/store_worker.h"

namespace ftrun {

/// The time limit of an answer from the store.
inline constexpr std::chrono::milliseconds kControlTimeout{2000};
/// The time limit if the server did not answer the previous time: a rank that must end soon should
/// not wait kControlTimeout for each of several answers.
inline constexpr std::chrono::milliseconds kSilentTimeout{500};
/// The time limit while the previous answer is still missing.
inline constexpr std::chrono::milliseconds kStuckTimeout{50};

/// StoreTimeoutError is thrown if the server does not answer in time. It may answer again later.
struct StoreTimeoutError : std::runtime_error {
  StoreTimeoutError() : std::runtime_error("the store does not answer") {}
};

/// StoreConnection is one client of the store, with the thread that waits for its answers.
struct StoreConnection {
  c10::intrusive_ptr<c10d::Store> store;
  StoreWorker worker;
  /// Says whether the server answers this connection's operations at once or not at all: none waits
  /// for keys.
  bool answers_at_once;
  std::atomic<bool> is_silent = false;

  /// Returns the result of `operation` on the store; throws StoreTimeoutError if the server does
  /// not answer within the limit.
  template <typename Operation>
  auto run_operation(Operation operation, std::chrono::milliseconds limit = kControlTimeout) {
    if (is_stuck()) throw StoreTimeoutError();
    if (answers_at_once && is_silent) limit = std::min(limit, kSilentTimeout);
    auto result = worker.run([store = store, operation] { return operation(*store); }, limit);
    is_silent = !result;
    if (!result) throw StoreTimeoutError();
    return std::move(*result);
  }
  /// Returns whether the previous answer is still missing.
  bool is_stuck() { return answers_at_once && is_silent && worker.is_stuck(kStuckTimeout); }
  void set(const std::string& key, std::vector<uint8_t> value,
           std::chrono::milliseconds limit = kControlTimeout) {
    run_operation([key, value](c10d::Store& server) { return server.set(key, value), true; },
                  limit);
  }
  bool has(const std::string& key, std::chrono::milliseconds limit = kControlTimeout) {
    return has_all({key}, limit);
  }
  bool has_all(const std::vector<std::string>& keys,
               std::chrono::milliseconds limit = kControlTimeout) {
    return run_operation([keys](c10d::Store& server) { return server.check(keys); }, limit);
  }
  std::vector<uint8_t> get(const std::string& key) {
    return run_operation([key](c10d::Store& server) { return server.get(key); });
  }
};

}  // namespace ftrun

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/open.h"
#include "thrown_error.h"

/// Runs `body` on one thread per rank, over an in-process store. Returns the message of each rank's
/// error, "" for none.
inline std::vector<std::string> run_ranks(int world_size,
                                          const std::function<void(ftrun::Rendezvous&)>& body) {
  auto all = ftrun::Rendezvous::make_in_process(world_size, std::chrono::seconds(20));
  std::vector<std::string> failures(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      failures[static_cast<size_t>(rank)] =
          ftrun::testing::error_text_of([&] { body(*all[static_cast<size_t>(rank)]); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

inline std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// Opens a communicator of all ranks.
inline std::unique_ptr<ftrun::Communicator> open_world(
    ftrun::Rendezvous& rendezvous, ftrun::CommBackend backend,
    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return ftrun::open_communicator(rendezvous, "world", all_ranks(rendezvous.world_size()),
                                  {.backend = backend, .timeout = timeout});
}

#pragma once

#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/rendezvous.h"
#include "thrown_error.h"
#include "training/session.h"

namespace ftrun::testing {

/// Returns the request of a rank that computes on the CPU and writes below `output_dir`.
inline TrainRequest request_of(int rank, int world_size, const Config& config) {
  TrainRequest request;
  request.config = config;
  request.config.device = DeviceKind::kCpu;
  request.config_json = cat(R"({"train": {"seed": )", config.train.seed, R"(, "steps": 5}})");
  request.config_yaml = "train:\n  steps: 5\n";
  request.launch.rank = rank;
  request.launch.world_size = world_size;
  request.launch.local_size = world_size;
  request.launch.local_rank = rank;
  request.build.version = "1.2.3";
  return request;
}

/// Returns the session of a run's only rank.
inline std::unique_ptr<Session> single_rank_session(const TrainRequest& request) {
  return std::make_unique<Session>(request, std::move(Rendezvous::make_in_process(1).front()));
}

/// Runs `body` on a separate thread for each rank, with the rank's session. Returns the error of
/// each rank, "" for none.
inline std::vector<std::string> run_sessions(const std::vector<TrainRequest>& requests,
                                             const std::function<void(Session&)>& body) {
  auto all =
      Rendezvous::make_in_process(static_cast<int>(requests.size()), std::chrono::seconds(60));
  std::vector<std::string> failures(requests.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < requests.size(); ++rank)
    threads.emplace_back([&, rank] {
      failures[rank] = testing::error_text_of([&] {
        Session session(requests[rank], std::move(all[rank]));
        body(session);
        session.close();
      });
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

/// Does the same for ranks whose requests differ only in the rank.
inline std::vector<std::string> run_sessions(int world_size, const Config& config,
                                             const std::function<void(Session&)>& body) {
  std::vector<TrainRequest> requests;
  for (int rank = 0; rank < world_size; ++rank)
    requests.push_back(request_of(rank, world_size, config));
  return run_sessions(requests, body);
}

/// Returns what `work` writes on standard output.
inline std::string capture_output(const std::function<void()>& work) {
  std::ostringstream text;
  std::streambuf* const before = std::cout.rdbuf(text.rdbuf());
  try {
    work();
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  return text.str();
}

}  // namespace ftrun::testing

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "../hangs.h"
#include "../ranks.h"
#include "base/rank_error.h"
#include "cluster/failure_report.h"
#include "comm/nccl_communicator.h"
#include "nccl.h"

#include <catch2/catch.hpp>

// These tests cause hangs over NCCL's stand-in: the host continues while the device waits, and an
// abort releases the device.

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// A stream that all groups of a rank share.
class HangGpu final : public HangDevice {
 public:
  HangGpu() { ::cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~HangGpu() override { ::cudaStreamDestroy(stream_); }
  int number() const override { return 0; }
  cudaStream_t stream() const { return stream_; }
  void attach(Communicator& group) override { group.use_stream(stream_); }
  void synchronize(const std::vector<Communicator*>& groups) override {
    ::cudaStreamSynchronize(stream_);
    for (Communicator* group : groups) group->check_peers();
  }

 private:
  cudaStream_t stream_ = nullptr;
};

std::unique_ptr<HangDevice> make_gpu() {
  return std::make_unique<HangGpu>();
}

/// A group of GPUs in its first collective, which other ranks may never reach.
class WaitingRank {
 public:
  WaitingRank(Rendezvous& rendezvous, std::chrono::milliseconds abort_timeout = 30s) {
    group_ = make_nccl_communicator({.name = "world",
                                     .members = all_ranks(rendezvous.world_size()),
                                     .rank = rendezvous.rank(),
                                     .timeout = 60s,
                                     .board = &rendezvous.board(),
                                     .abort_timeout = abort_timeout},
                                    rendezvous, 0);
    gpu_.attach(*group_);
  }
  ~WaitingRank() { destroy_capture(); }
  Communicator& group() { return *group_; }
  /// Captures a sum that replay() launches.
  void record(const char* what) {
    group_->begin_capture();
    ::cudaStreamBeginCapture(gpu_.stream());
    add(what);
    ::cudaStreamEndCapture(gpu_.stream(), &graph_);
    captured_ = group_->end_capture();
  }
  void replay() {
    group_->begin_replay(captured_);
    ::cudaGraphLaunch(graph_, gpu_.stream());
    group_->end_replay();
  }
  void destroy_capture() {
    if (graph_ == nullptr) return;
    ::cudaGraphDestroy(std::exchange(graph_, nullptr));
    group_->release_captures(1);
  }
  void fail_device() { fault_in(gpu_.stream()); }
  void add(const char* what) {
    group_->all_reduce(data_.data(), 8, DType::kF32, ReduceOp::kSum, {what}).wait();
  }
  void synchronize() { gpu_.synchronize({group_.get()}); }

 private:
  std::vector<float> data_ = std::vector<float>(8, 1.0F);
  HangGpu gpu_;
  std::unique_ptr<Communicator> group_;
  cudaGraph_t graph_ = nullptr;
  std::vector<CollectiveRecord> captured_;
};

/// Reads everything that a process writes until it ends.
std::string read_all(int fd) {
  std::string all;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(fd, part, sizeof part)) > 0;)
    all.append(part, static_cast<size_t>(got));
  ::close(fd);
  return all;
}

/// Runs a case where rank 0's device waits in a collective that rank 1 never reaches, and no abort
/// ends it.
[[noreturn]] void block_forever() {
  ::alarm(120);
  stand_in().abort_fails = true;
  run_ranks(2, [&](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous, 50ms);
    rank.group().set_timeout(200ms);
    if (rendezvous.rank() == 1) std::this_thread::sleep_for(1h);
    rank.add("loss");
    rank.synchronize();
  });
  ::_exit(0);
}

}  // namespace

TEST_CASE("nccl: the culprit of each injected hang is named, with what it does") {
  std::mt19937 random(20261124);
  std::vector<HangCase> hangs;
  for (int i = 0; i < 3 * kHangs; ++i)
    hangs.push_back(draw_hang(random, static_cast<Hang>(i % kHangs), CommBackend::kNccl));
  const std::vector<std::string> wrong = find_naming_errors(hangs, make_gpu);
  CAPTURE(wrong);
  REQUIRE(wrong.empty());
}

TEST_CASE("nccl: a rank that gives up frees the others, at once and not at the time limit") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous);
    rank.add("gradients");
    rank.synchronize();
    if (rendezvous.rank() == 1) {
      // The watching thread publishes the end of a collective a little later than it happens.
      const auto shown = [&] { return rendezvous.view_members({1}, "world")[0].record; };
      while (shown().sequence < 1 || shown().state != CollectiveState::kFinished) continue;
      rank.group().abort("disk full");
      rendezvous.all_gather_text("noticed", "");
      return;
    }
    rank.add("loss");
    try {
      rank.synchronize();
    } catch (const Error&) {
      rendezvous.all_gather_text("noticed", "");
      throw;
    }
  });
  // The message depends on whether this rank has received the other's board already.
  REQUIRE_THAT(
      failures[0],
      Catch::StartsWith(
          "rank 0 lost a peer in all_reduce #2 (loss, 8 x F32) of group world: rank 1 (process ") &&
          (Catch::Contains(" gave up in all_reduce #1 (gradients, 8 x F32)") ||
           Catch::Contains(
               " has not entered it; its last was all_reduce #1 (gradients, 8 x F32), ")));
  REQUIRE(failures[1] == "");
}

TEST_CASE(
    "nccl: a peer that stays away from a captured step is named while its graph is still "
    "there") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous);
    rank.record("gradients");
    rank.replay();
    rank.synchronize();
    if (rendezvous.rank() == 1) {
      const auto shown = [&] { return rendezvous.view_members({1}, "world")[0].record; };
      while (shown().sequence < 1 || shown().state != CollectiveState::kFinished) continue;
      rendezvous.all_gather_text("away", "");
      rendezvous.all_gather_text("noticed", "");
      return;
    }
    rendezvous.all_gather_text("away", "");
    rank.group().set_timeout(400ms);
    rank.replay();
    try {
      rank.synchronize();
    } catch (const Error&) {
      rendezvous.all_gather_text("noticed", "");
      throw;
    }
  });
  REQUIRE_THAT(failures[0],
               Catch::StartsWith("rank 0 waited ") &&
                   Catch::Contains(
                       " in all_reduce #2 (gradients, 8 x F32) of group world: rank 1 (process "));
  REQUIRE(failures[1] == "");
}

TEST_CASE("nccl: a group is closed once its captured graphs are destroyed, and not before") {
  const auto failures = run_ranks(1, [](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous);
    rank.record("gradients");
    rank.replay();
    rank.synchronize();
    std::string message;
    try {
      rank.group().shutdown();
    } catch (const Error& error) {
      message = error.message();
    }
    require(
        message.find("group world is closed while its collectives are held by 1 captured graph") !=
            std::string::npos,
        message.c_str());
    rank.destroy_capture();
    rank.group().shutdown();
  });
  REQUIRE(failures[0] == "");
}

TEST_CASE(
    "nccl: a fault of this rank's own device is reported as one, and its peers learn that it gives "
    "up") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous);
    rank.add("gradients");
    rank.synchronize();
    if (rendezvous.rank() == 0) rank.fail_device();
    std::string own;
    try {
      rank.add("loss");
      rank.synchronize();
      // After a device failure the host does not block, so it may be here before the watching
      // thread has seen the failure.
      for (;;) rank.group().check_peers();
    } catch (const RankError& error) {
      require(error.code() == ExitCode::kEnvironment && error.rank() == RankError::kThisRank &&
                  error.is_device_failure() && rendezvous.board().blamed_rank() == -1,
              "the device of this rank failed, and nobody else is blamed");
      own = error.message();
    } catch (const Error& error) {
      own = error.message();
    }
    rendezvous.all_gather_text("noticed", "");
    bug(own);
  });
  CAPTURE(failures[0], failures[1]);
  REQUIRE_THAT(failures[0],
               Catch::Contains("querying an event failed: CUDA reported an error, of the "
                               "stand-in (noticed in all_reduce #2 (loss, "
                               "8 x F32) of group world)"));
  REQUIRE_THAT(
      failures[1],
      Catch::Contains(
          "rank 1 lost a peer in all_reduce #2 (loss, 8 x F32) of group world: rank 0 (process ") &&
          Catch::Contains(" gave up in all_reduce #"));
}

TEST_CASE("nccl: a failure of CUDA in NCCL's own calls is not reported as a lost peer") {
  stand_in().cuda_fails = true;
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    WaitingRank rank(rendezvous);
    if (rendezvous.rank() == 0) {
      try {
        rank.add("loss");
        rank.synchronize();
      } catch (const Error& error) {
        // Whether the watching thread or this one notices first, the other rank is waiting.
        rendezvous.all_gather_text("noticed", "");
        const auto* const of_rank = dynamic_cast<const RankError*>(&error);
        require(of_rank == nullptr || of_rank->is_device_failure(),
                "the device of this rank failed");
        throw;
      }
    }
    rendezvous.all_gather_text("noticed", "");
  });
  stand_in_reset();
  REQUIRE(
      failures[0] ==
      "a collective failed: NCCL reported unhandled cuda error: socketProgress: Connection closed "
      "(noticed in all_reduce #1 (loss, 8 x F32) of group world)");
  REQUIRE(failures[1] == "");
}

TEST_CASE(
    "nccl: if an abort does not free the host, the process ends and its report reaches the "
    "supervisor") {
  int words[2], status[2];
  REQUIRE((::pipe2(words, O_CLOEXEC) == 0 && ::pipe2(status, O_CLOEXEC) == 0));
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(words[1], 2);
    ::setenv("FTRUN_STATUS_FD", std::to_string(status[1]).c_str(), 1);
    block_forever();
  }
  ::close(words[1]);
  ::close(status[1]);
  const std::string output = read_all(words[0]);
  const std::string reported = read_all(status[0]);
  int ended = 0;
  ::waitpid(child, &ended, 0);
  CAPTURE(output, reported);
  REQUIRE((WIFEXITED(ended) && WEXITSTATUS(ended) == 6));
  const auto report = parse_failure_line(reported);
  REQUIRE(report.has_value());
  REQUIRE_THAT(
      report->message,
      Catch::StartsWith("rank 0 waited ") &&
          Catch::Contains(" in all_reduce #1 (loss, 8 x F32) of group world: rank 1 (process ") &&
          Catch::Contains(" has not entered it; "));
  REQUIRE(output == "error: " + report->message + "\n");
  REQUIRE(report->exit_code == 6);
  REQUIRE(report->culprit == 1);
}

#include "base/wait_notice.h"

#include <condition_variable>
#include <mutex>
#include <regex>

#include "comm/listen_socket.h"
#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// WaitNotices collects the notices of waits of one kind, a regular expression, from all threads.
/// On a busy machine other waits take long enough for a notice too.
class WaitNotices {
 public:
  explicit WaitNotices(const std::string& kind) : kind_(kind) {}
  WaitNoticeOptions options(std::chrono::milliseconds first = 40ms) {
    return {.first_delay = first, .interval = 20ms, .report = [this](const std::string& line) {
              if (!std::regex_search(line, kind_)) return;
              const std::lock_guard lock(mutex_);
              lines_.push_back(line);
              changed_.notify_all();
            }};
  }
  void await(size_t count) {
    std::unique_lock lock(mutex_);
    require(changed_.wait_for(lock, 60s, [&] { return lines_.size() >= count; }),
            "notices of waits arrive");
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  const std::regex kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// Runs `body` on each of `world_size` ranks, and returns the notices of waits of that kind.
std::vector<std::string> notices_of(int world_size, const std::string& kind,
                                    const std::function<void(Rendezvous&, WaitNotices&)>& body) {
  WaitNotices notices(kind);
  auto all = Rendezvous::make_in_process(world_size, 60s, 10ms, notices.options());
  std::vector<std::thread> threads;
  for (auto& rendezvous : all) threads.emplace_back([&] { body(*rendezvous, notices); });
  for (std::thread& thread : threads) thread.join();
  return notices.lines();
}

void require_all(const std::vector<std::string>& lines, const std::string& expression) {
  CAPTURE(lines);
  for (const std::string& line : lines) REQUIRE_THAT(line, Catch::Matches(expression));
}

}  // namespace

TEST_CASE("the first rank of an exchange tells whom it waits for, and again after a while") {
  const auto lines = notices_of(3, "rank 2 is in reading the data",
                                [](Rendezvous& rendezvous, WaitNotices& notices) {
                                  if (rendezvous.rank() == 2) {
                                    rendezvous.board().show_phase("reading the data");
                                    notices.await(2);
                                  }
                                  rendezvous.all_gather_text("hash", "x");
                                });
  // Rank 1 reports the wait if rank 0 itself is late, on a busy machine.
  require_all(
      lines, R"(rank [01] of 3 has waited [\d.]+s for ranks? ([01], )?2 in "hash"; .*rank 2 is in )"
             R"(reading the data, for [\d.]+s; it gives up after 1m 00s)");
}

TEST_CASE("if the first rank of an exchange is missing, the next one reports it") {
  const auto lines =
      notices_of(3, "for ranks? 0", [](Rendezvous& rendezvous, WaitNotices& notices) {
        if (rendezvous.rank() == 0) notices.await(1);
        rendezvous.all_gather_text("hash", "x");
      });
  require_all(
      lines,
      R"(rank [12] of 3 has waited [\d.]+s for ranks? 0(, [12])? in "hash"; .*it gives up after )"
      R"(1m 00s)");
}

TEST_CASE(
    "the first rank that waits in a collective reports who is missing and what that one does") {
  const auto lines =
      notices_of(3, "writing a checkpoint", [](Rendezvous& rendezvous, WaitNotices& notices) {
        const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
        if (rendezvous.rank() == 1) {
          rendezvous.board().show_phase("writing a checkpoint");
          notices.await(2);
        }
        std::vector<float> data(4, 1.0F);
        group->all_reduce(data.data(), 4, DType::kF32, ReduceOp::kSum, {"gradients"}).wait();
        rendezvous.all_gather_text("done", "");
      });
  require_all(
      lines,
      R"(rank [02] has waited [\d.]+s in all_reduce #1 \(gradients, 4 x F32\) of group world: )"
      R"(.*rank 1 \(process \d+ on .*\) has not entered it; )"
      R"(.*it is in writing a checkpoint, for [\d.]+s.*)");
}

TEST_CASE("a receive tells whom it waits for, whoever else waits") {
  const auto lines = notices_of(3, "receive", [](Rendezvous& rendezvous, WaitNotices& notices) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    std::vector<float> data(4, 1.0F);
    if (rendezvous.rank() == 1) notices.await(1);
    if (rendezvous.rank() == 1) group->send(data.data(), 4, DType::kF32, 2, {"hidden"}).wait();
    if (rendezvous.rank() == 2) group->receive(data.data(), 4, DType::kF32, 1, {"hidden"}).wait();
  });
  require_all(
      lines,
      R"(rank 2 has waited [\d.]+s in receive #1 \(hidden, 4 x F32\) of group world: rank 1 .*)");
}

TEST_CASE("a wait in a collective that is as long as steps of this run are is not reported") {
  const auto lines = notices_of(2, "barrier #1", [](Rendezvous& rendezvous, WaitNotices&) {
    rendezvous.set_usual_wait(1h);
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    if (rendezvous.rank() == 1) std::this_thread::sleep_for(200ms);
    group->barrier({"wait"});
  });
  CHECK(lines == std::vector<std::string>{});
}

TEST_CASE("a rank that cannot reach rank 0 says where it looks, why it fails and for how long") {
  WaitNotices notices("rendezvous");
  const int port = listen_on("127.0.0.1", 0).port;  // the socket is closed again
  const RendezvousOptions options{.rank = 1,
                                  .world_size = 4,
                                  .port = port,
                                  .timeout = 400ms,
                                  .token = "0123456789abcdef0123",
                                  .notices = notices.options()};
  REQUIRE_THROWS_WITH(Rendezvous::connect(options),
                      Catch::StartsWith(cat(
                          "rank 1 could not reach the rendezvous of rank 0 at 127.0.0.1:", port)));
  REQUIRE_FALSE(notices.lines().empty());
  require_all(notices.lines(),
              cat(R"(rank 1 of 4 has waited [\d.]+s for the rendezvous of rank 0 at 127\.0\.0\.1:)",
                  port, R"( \(Connection refused\); it gives up after 0\.4s)"));
}

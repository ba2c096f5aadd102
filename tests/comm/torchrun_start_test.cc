#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/listen_socket.h"
#include "comm/rendezvous.h"
#include "waiting.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

/// The store of a torchrun agent; it outlives the ranks that the agent starts.
class TorchrunStore {
 public:
  TorchrunStore() {
    c10d::TCPStoreOptions options;
    options.isServer = true;
    options.waitWorkers = false;
    options.port = 0;
    server_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  RendezvousOptions options(int rank, int world_size,
                            std::chrono::milliseconds timeout = 20s) const {
    return {.rank = rank,
            .world_size = world_size,
            .port = server_->getPort(),
            .has_torchrun_store = true,
            .timeout = timeout};
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> server_;
};

struct RankStart {
  std::vector<std::string> texts;
  TorchrunLaunch launch;
  std::string failure;
};

/// Runs the ranks of one start, each of which begins `late` after the previous one. They end as if
/// killed: they remove nothing from the store.
std::vector<RankStart> start_ranks(const TorchrunStore& agent, int world_size,
                                   const std::string& name, std::chrono::milliseconds late = 0ms,
                                   std::vector<int> ranks = {}) {
  if (ranks.empty())
    for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  std::vector<RankStart> starts(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      std::this_thread::sleep_for(late * i);
      try {
        const auto rendezvous = Rendezvous::connect(agent.options(
            ranks[i], world_size, ranks.size() < static_cast<size_t>(world_size) ? 1000ms : 20s));
        starts[i].launch = rendezvous->torchrun_launch().value();
        std::this_thread::sleep_for(late * i);
        starts[i].texts = rendezvous->all_gather_text("hash", cat(name, ranks[i]));
      } catch (const std::exception& error) {
        starts[i].failure = testing::failure_message(error);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return starts;
}

}  // namespace

TEST_CASE("ranks that torchrun started again meet each other, but not an earlier start") {
  const TorchrunStore agent;
  std::string launch;
  for (const char* name : {"a", "b", "c"}) {
    const auto starts = start_ranks(agent, 3, name, 200ms,
                                    name[0] == 'b' ? std::vector{2, 1, 0} : std::vector{0, 1, 2});
    for (const RankStart& rank : starts) {
      REQUIRE(rank.failure.empty());
      REQUIRE(rank.texts == std::vector<std::string>{cat(name, 0), cat(name, 1), cat(name, 2)});
      REQUIRE(rank.launch.earlier_starts == name[0] - 'a');
      if (launch.empty()) launch = rank.launch.name;
      REQUIRE(rank.launch.name == launch);
    }
  }
  REQUIRE(launch.size() == 32);
  const TorchrunStore other;
  REQUIRE(start_ranks(other, 1, "d")[0].launch.name != launch);
}

TEST_CASE("texts longer than torchrun's store takes in one request reach every rank") {
  const TorchrunStore agent;
  for (const size_t bytes : {size_t{5} << 20, size_t{9} << 20}) {
    const std::string text(bytes, 'x');
    const auto starts = start_ranks(agent, 2, text);
    for (const RankStart& rank : starts) {
      REQUIRE(rank.failure.empty());
      REQUIRE((rank.texts == std::vector<std::string>{text + "0", text + "1"}));
    }
  }
}

TEST_CASE("no rank joins a start that lost a rank while meeting, or had another number of ranks") {
  const TorchrunStore agent;
  REQUIRE_THAT(
      start_ranks(agent, 3, "a", 0ms, {0, 2})[0].failure,
      Catch::StartsWith("rank 0 waited 1.0s for the other ranks to register in torchrun's store: "
                        "rank 1 did not arrive in time"));
  REQUIRE_THAT(start_ranks(agent, 2, "b", 0ms, {1})[0].failure,
               Catch::Contains("store: rank 0 did not arrive in time"));
  REQUIRE_THAT(start_ranks(agent, 3, "c", 0ms, {1})[0].failure,
               Catch::Contains("store: not all arrived in time"));
  for (const RankStart& rank : start_ranks(agent, 2, "d", 100ms, {1, 0})) {
    REQUIRE(rank.failure.empty());
    REQUIRE(rank.texts == std::vector<std::string>{"d0", "d1"});
    REQUIRE(rank.launch.earlier_starts == 1);
  }
}

TEST_CASE("of two processes that claim one rank, only one joins the start") {
  const TorchrunStore agent;
  const auto starts = start_ranks(agent, 2, "a");
  REQUIRE(starts[1].texts == std::vector<std::string>{"a0", "a1"});
  // The members of this start are known already, and its rank 1 is another process.
  REQUIRE_THAT(start_ranks(agent, 2, "b", 0ms, {1})[0].failure,
               Catch::Contains("rank 1 waited 1.0s") && Catch::Contains("not all arrived in time"));
}

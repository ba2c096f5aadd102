#include "engine/lanes.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <random>
#include <stdexcept>

#include "few_threads.h"
#include "waiting.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace std::chrono_literals;

/// Builds a program of instructions given as (lane, waits); an instruction's index is its id.
Program lanes_program(const std::vector<std::pair<Lane, std::vector<InstrId>>>& instrs) {
  Program program;
  program.groups = {{{"pair", {0, 1}}, {2, 0}}};
  for (const auto& [lane, waits] : instrs) {
    Instr instr;
    instr.lane = lane;
    instr.waits = waits;
    program.instrs.push_back(instr);
  }
  return program;
}

constexpr Lane kCompute = Lane::kCompute;
constexpr Lane kCommunication = lane_of(0);

InstrId id_of(const Program& program, const Instr& instr) {
  return static_cast<InstrId>(&instr - program.instrs.data());
}

/// Runs `work`; fails the test, instead of hanging, if it takes more than 20 seconds.
void within_seconds(const std::function<void()>& work) {
  std::packaged_task<void()> task(work);
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(20s) != std::future_status::ready) {
    thread.detach();
    testing::fail_by_timeout("20 s for lanes that hang");
  }
  thread.join();
  done.get();
}

Program random_program(std::mt19937& random) {
  std::vector<std::pair<Lane, std::vector<InstrId>>> instrs;
  for (InstrId i = 0; i < 40; ++i) {
    const Lane lane = random() % 3 == 0 ? kCommunication : kCompute;
    std::vector<InstrId> waits;
    for (InstrId earlier = 0; earlier < i; ++earlier)
      if (instrs[static_cast<size_t>(earlier)].first != lane && random() % 5 == 0)
        waits.push_back(earlier);
    instrs.push_back({lane, waits});
  }
  return lanes_program(instrs);
}

TEST_CASE("a lane runs in order, and no instruction begins before those it waits for have ended") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const Program program = random_program(random);
    std::vector<std::atomic<int>> ended(program.instrs.size());
    std::atomic<int> clock = 0;
    std::atomic<bool> wrong = false;
    LaneThreads lanes(
        program,
        [&](const Instr& instr) {
          const InstrId self = id_of(program, instr);
          for (const InstrId wait : instr.waits)
            wrong = wrong || ended[static_cast<size_t>(wait)] == 0;
          for (InstrId earlier = 0; earlier < self; ++earlier)
            if (program.instr(earlier).lane == instr.lane)
              wrong = wrong || ended[static_cast<size_t>(earlier)] == 0;
          if (self % 7 == 0) std::this_thread::sleep_for(50us);
          ended[static_cast<size_t>(self)] = ++clock;
        },
        [] {});
    for (int run = 0; run < 5; ++run) {
      for (auto& end : ended) end = 0;
      clock = 0;
      within_seconds([&] { lanes.run_once(); });
      REQUIRE(clock == static_cast<int>(program.instrs.size()));
      REQUIRE_FALSE(wrong);
    }
  }
}

TEST_CASE("compute runs on the calling thread, and communication concurrently on another") {
  const Program program = lanes_program({{kCommunication, {}}, {kCompute, {}}});
  std::promise<void> in_compute, in_communication;
  std::array<std::thread::id, 2> threads;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        const size_t lane = instr.lane == kCompute ? 0 : 1;
        threads[lane] = std::this_thread::get_id();
        // Each of the two waits until the other has begun, so they end only if they run at the same
        // time.
        (lane == 0 ? in_compute : in_communication).set_value();
        (lane == 0 ? in_communication : in_compute).get_future().wait_for(20s);
      },
      [] {});
  lanes.run_once();
  REQUIRE(threads[0] == std::this_thread::get_id());
  REQUIRE(threads[1] != std::this_thread::get_id());
}

TEST_CASE("the time for which compute waited for communication is reported") {
  const Program program = lanes_program({{kCommunication, {}}, {kCompute, {0}}});
  bool slow = true;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        if (instr.lane == kCommunication && slow) std::this_thread::sleep_for(300ms);
      },
      [] {});
  lanes.run_once();
  const double first = lanes.exposed_communication_seconds();
  REQUIRE(first > 0.25);
  slow = false;
  lanes.run_once();
  // Each run is measured separately; times do not accumulate over runs.
  REQUIRE(lanes.exposed_communication_seconds() < first);
}

TEST_CASE("waits of compute for copies between tiers do not count as communication") {
  const Program program = lanes_program(
      {{Lane::kToDevice, {}}, {kCommunication, {}}, {Lane::kDisk, {}}, {kCompute, {0, 1, 2}}});
  constexpr auto kCopy = 200ms;
  std::promise<void> communicated;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        if (instr.lane == kCommunication) communicated.set_value();
        // The copy starts after the communication has ended, so that their times do not overlap.
        if (instr.lane == Lane::kToDevice) communicated.get_future().wait_for(20s);
        if (instr.lane == Lane::kToDevice || instr.lane == Lane::kDisk)
          std::this_thread::sleep_for(kCopy);
      },
      [] {});
  lanes.run_once();
  REQUIRE(lanes.exposed_communication_seconds() < std::chrono::duration<double>(kCopy).count());
}

TEST_CASE(
    "a failure of the compute lane releases communication, and is thrown when all lanes have "
    "stopped") {
  const Program program =
      lanes_program({{kCommunication, {}}, {kCompute, {}}, {kCompute, {0}}, {kCommunication, {2}}});
  std::promise<void> begun, released;
  std::atomic<int> aborts = 0, ended = 0;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        if (instr.lane == kCommunication) {
          begun.set_value();
          released.get_future().wait();  // blocks like a collective that no peer enters
          ++ended;
          return;
        }
        begun.get_future().wait();
        throw std::runtime_error("compute failed");
      },
      [&] {
        ++aborts;
        released.set_value();
      });
  std::string message;
  within_seconds([&] {
    try {
      lanes.run_once();
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
  });
  REQUIRE(message == "compute failed");
  REQUIRE(aborts == 1);
  REQUIRE(ended == 1);
}

TEST_CASE("a failure of a communication lane releases the compute lane") {
  const Program program = lanes_program({{kCommunication, {}}, {kCompute, {0}}});
  std::atomic<int> computed = 0, aborts = 0;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        if (instr.lane == kCommunication) throw std::runtime_error("a peer is lost");
        ++computed;
      },
      [&] { ++aborts; });
  within_seconds([&] { REQUIRE_THROWS_WITH(lanes.run_once(), "a peer is lost"); });
  REQUIRE(computed == 0);
  REQUIRE(aborts == 1);
}

TEST_CASE("of two failures of lanes the first one is thrown") {
  const Program program = lanes_program({{kCommunication, {}}, {kCompute, {}}});
  std::promise<void> aborted;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        if (instr.lane == kCompute) throw std::runtime_error("the cause");
        aborted.get_future().wait();
        throw std::runtime_error("the consequence");
      },
      [&] { aborted.set_value(); });
  within_seconds([&] { REQUIRE_THROWS_WITH(lanes.run_once(), "the cause"); });
}

TEST_CASE("lanes that never ran, ran once or failed can be destroyed") {
  const Program program = lanes_program({{kCommunication, {}}, {kCompute, {0}}});
  within_seconds([&] {
    const LaneThreads never(
        program, [](const Instr&) {}, [] {});
  });
  within_seconds([&] {
    LaneThreads once(
        program, [](const Instr&) {}, [] {});
    once.run_once();
  });
  within_seconds([&] {
    LaneThreads failed(
        program, [](const Instr&) { throw std::runtime_error("no"); }, [] {});
    REQUIRE_THROWS(failed.run_once());
  });
}

#if FTRUN_CAN_REFUSE_THREADS
TEST_CASE("lanes whose threads the system refuses throw an error and end those that run") {
  Program program;
  for (int group = 0; group < 48; ++group) {
    program.groups.push_back({{"pair", {0, 1}}, {2, 0}});
    Instr instr;
    instr.lane = lane_of(group);
    program.instrs.push_back(instr);
  }
  CHECK(testing::error_with_few_threads([&] {
          const LaneThreads lanes(
              program, [](const Instr&) {}, [] {});
        }) == "the system cannot start another thread: Resource temporarily unavailable");
}
#endif

TEST_CASE("an instruction is ready when all that it waits for is done") {
  // Communication runs #1 and #3. #3 waits for compute's #2, which blocks until the test releases
  // it.
  const Program program =
      lanes_program({{kCompute, {}}, {kCommunication, {0}}, {kCompute, {}}, {kCommunication, {2}}});
  std::promise<void> go;
  std::vector<bool> ready;
  LaneThreads* lanes_in_use = nullptr;
  LaneThreads lanes(
      program,
      [&](const Instr& instr) {
        const InstrId id = id_of(program, instr);
        if (id == 2) go.get_future().wait();
        if (id != 1) return;
        ready.push_back(lanes_in_use->is_ready(1));
        ready.push_back(lanes_in_use->is_ready(3));
        go.set_value();
        while (!lanes_in_use->is_ready(3)) std::this_thread::yield();
      },
      [] {});
  lanes_in_use = &lanes;
  within_seconds([&] { lanes.run_once(); });
  CHECK(ready == std::vector<bool>{true, false});
}

}  // namespace
}  // namespace ftrun

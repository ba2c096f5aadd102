#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {
const CommBackend kFailingBackends[] = {CommBackend::kGloo, CommBackend::kSharedMemory};

std::string own_process() {
  const PeerIdentity self = own_identity();
  return cat(" (process ", self.pid, " on ", self.host, ")");
}

CollectiveRecord record(int64_t sequence, CollectiveRecord::State state, const char* site = "") {
  CollectiveRecord result{.sequence = sequence,
                          .count = 4,
                          .kind = CollectiveKind::kAllReduce,
                          .dtype = DType::kF32,
                          .state = state};
  std::string_view(site).copy(result.site, sizeof result.site - 1);
  return result;
}
}  // namespace

TEST_CASE("a rank that does not come is named with the collective, its place and the last it did") {
  for (const CommBackend backend : kFailingBackends) {
    std::vector<std::string> failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 400ms);
      std::vector<float> data(4, 1.0F);
      group->all_reduce(data.data(), 4, DType::kF32, ReduceOp::kSum, {"gradient bucket 6"}).wait();
      if (rendezvous.rank() == 1) {
        std::this_thread::sleep_for(2s);
        return;
      }
      group->all_reduce(data.data(), 4, DType::kF32, ReduceOp::kSum, {"gradient bucket 7"}).wait();
    });
    CAPTURE(backend_name(backend));
    REQUIRE(failures[1].empty());
    // One of the two may have noticed only that the other gave up.
    const bool first =
        failures[0].find("rank 1" + own_process() + " has not entered it") != std::string::npos;
    const std::string& told = first ? failures[0] : failures[2];
    REQUIRE_THAT(told, Catch::StartsWith(cat("rank ", first ? 0 : 2, " waited 0.")) ||
                           Catch::StartsWith(cat("rank ", first ? 0 : 2, " lost a ")));
    REQUIRE_THAT(told, Catch::Contains(
                           " in all_reduce #2 (gradient bucket 7, 4 x F32) of group world: rank 1" +
                           own_process() +
                           " has not entered it; its last was all_reduce #1 (gradient bucket 6, 4 "
                           "x F32), finished "));
  }
}

TEST_CASE("ranks that disagree about size, type or operation are told so before anything is sent") {
  for (const CommBackend backend : kFailingBackends) {
    const auto sizes = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 5s);
      std::vector<float> data(8);
      group
          ->all_reduce(data.data(), rendezvous.rank() == 0 ? 8 : 7, DType::kF32, ReduceOp::kSum,
                       {"bucket 3"})
          .wait();
    });
    REQUIRE(sizes[0] ==
            "the ranks of group world disagree: rank 0 is in all_reduce #1 (bucket 3, 8 x F32), "
            "rank 1 is in all_reduce #1 (bucket 3, 7 x F32)\n  remedy: all ranks must run the same "
            "program on the same config; please report this");
    REQUIRE(sizes[1] == sizes[0]);
    const auto kinds = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 5s);
      std::vector<float> data(8);
      if (rendezvous.rank() == 0) group->barrier({"end"});
      group->broadcast(data.data(), 8, DType::kF32, 0, {"weights"}).wait();
    });
    REQUIRE_THAT(kinds[1], Catch::StartsWith(
                               "the ranks of group world disagree: rank 0 is in barrier #1 (end), "
                               "rank 1 is in broadcast #1 (weights, 8 x F32)"));
  }
}

TEST_CASE("a message of another size is refused by its receiver") {
  for (const CommBackend backend : kFailingBackends) {
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 2s);
      std::vector<float> data(8);
      if (rendezvous.rank() == 0) {
        group->send(data.data(), 8, DType::kF32, 1, {"activation"}).wait();
      } else {
        group->receive(data.data(), 7, DType::kF32, 0, {"activation"}).wait();
      }
    });
    REQUIRE_THAT(failures[1], Catch::StartsWith("rank 0 does send #1 (activation, 8 x F32) but "
                                                "rank 1 does receive #1 (activation, 7 x F32)"));
  }
}

TEST_CASE("a receive without a send times out and names the sender") {
  for (const CommBackend backend : kFailingBackends) {
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 300ms);
      float data = 0;
      if (rendezvous.rank() == 1) group->receive(&data, 1, DType::kF32, 0, {"activation"}).wait();
      if (rendezvous.rank() == 0) std::this_thread::sleep_for(1500ms);
    });
    REQUIRE_THAT(
        failures[1],
        Catch::StartsWith("rank 1 waited 0.") &&
            Catch::Contains(" in receive #1 (activation, 1 x F32) of group world: rank 0 is "
                            "there but has not taken its part"));
  }
}

TEST_CASE("a rank that gives up makes the others fail at once, not at the timeout") {
  for (const CommBackend backend : kFailingBackends) {
    CAPTURE(backend_name(backend));
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      // The one that gives up is there until the other has noticed: nothing else tells it.
      const auto group = open_world(rendezvous, backend, 300s);
      float data = 0;
      if (rendezvous.rank() == 1) {
        std::this_thread::sleep_for(100ms);
        group->abort("disk full");
        rendezvous.exchange_text("noticed", "");
        return;
      }
      try {
        group->all_reduce(&data, 1, DType::kF32, ReduceOp::kSum, {"loss"}).wait();
      } catch (const Error&) {
        rendezvous.exchange_text("noticed", "");
        throw;
      }
    });
    REQUIRE_THAT(failures[0],
                 Catch::StartsWith("rank 0 lost a peer in all_reduce #1 (loss, 1 x F32)"));
    REQUIRE(failures[1] == "");
  }
}

TEST_CASE("a broken communicator refuses further calls with the first reason") {
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory, 200ms);
    if (rendezvous.rank() == 1) {
      std::this_thread::sleep_for(1s);
      return;
    }
    float data = 0;
    try {
      group->all_reduce(&data, 1, DType::kF32, ReduceOp::kSum, {"a"}).wait();
    } catch (const Error&) {
    }
    group->barrier({"b"});
  });
  REQUIRE_THAT(failures[0], Catch::StartsWith("group world is already broken: rank 0 waited 0."));
}

TEST_CASE("misuse is refused before it reaches a peer") {
  const auto failures = run_ranks(1, [](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kAuto);
    float data = 0;
    const auto refused = [](auto call) {
      try {
        call();
      } catch (const Error& error) {
        require(error.code() == ExitCode::kBug, "our own mistake");
        return;
      }
      bug("accepted");
    };
    refused([&] { group->all_reduce(&data, -1, DType::kF32, ReduceOp::kSum, {}).wait(); });
    refused([&] { group->all_reduce(nullptr, 1, DType::kF32, ReduceOp::kSum, {}).wait(); });
    refused([&] { group->all_reduce(&data, 1, DType::kBool, ReduceOp::kSum, {}).wait(); });
    refused([&] { group->broadcast(&data, 1, DType::kF32, 1, {}).wait(); });
    refused([&] { group->send(&data, 1, DType::kF32, 0, {}).wait(); });
  });
  REQUIRE(failures == std::vector<std::string>(1));
}

TEST_CASE("NCCL in a build without CUDA is refused by name") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    open_communicator(rendezvous, "dp", {0, 1}, {.backend = CommBackend::kNccl, .device = 0});
  });
  REQUIRE_THAT(failures[0],
               Catch::StartsWith("group dp wants NCCL, but this ftrun was built without CUDA") ||
                   Catch::Contains("NCCL"));
}

TEST_CASE("dead ranks are blamed before late ones, and ranks that gave up last") {
  using State = CollectiveRecord::State;
  const CollectiveRecord mine = record(5, State::kEntered);
  PeerView self{.global_rank = 0, .record = mine};
  PeerView dead{.global_rank = 1,
                .identity = {.host = "n1", .pid = 7},
                .process = ProcessState::kGone,
                .record = record(4, State::kFinished)};
  PeerView late{.global_rank = 2, .record = record(4, State::kFinished)};
  PeerView gave_up{.global_rank = 3, .record = record(5, State::kAborted)};
  REQUIRE(explain_peers({self, dead, late, gave_up}, mine, 0) ==
          "rank 1 (process 7 on n1) is gone");
  dead.process = ProcessState::kStopped;
  REQUIRE(explain_peers({self, dead, late, gave_up}, mine, 0) ==
          "rank 1 (process 7 on n1) is stopped");
  REQUIRE_THAT(explain_peers({self, late, gave_up}, mine, 0),
               Catch::StartsWith("rank 2 has not entered it; its last was all_reduce #4 (4 x F32), "
                                 "finished "));
  REQUIRE(explain_peers({self, gave_up}, mine, 0) == "rank 3 gave up in all_reduce #5 (4 x F32)");
  late.record = mine;
  REQUIRE(explain_peers({self, late}, mine, 0) ==
          "every rank has entered it and none is known to be lost");
  late.record.state = State::kLeft;
  REQUIRE(explain_peers({self, late}, mine, 0) == "rank 2 has left the group");
  late.record = record(0, State::kNone);
  late.silent = true;
  REQUIRE(explain_peers({self, late}, mine, 0) ==
          "rank 2 gives no sign of life; it has entered no collective of the group yet");
}

TEST_CASE("the progress board survives its trip through the store") {
  ProgressBoard board(3);
  ProgressBoard::Slot* a = board.open("dp");
  ProgressBoard::Slot* b = board.open("tp");
  a->enter(record(9, CollectiveRecord::State::kNone, "gradient bucket 1"));
  const auto image = board.image();
  REQUIRE(describe(ProgressBoard::find(image, "dp")) ==
          "all_reduce #9 (gradient bucket 1, 4 x F32)");
  REQUIRE(ProgressBoard::find(image, "dp").state == CollectiveRecord::State::kEntered);
  REQUIRE(ProgressBoard::find(image, "tp").state == CollectiveRecord::State::kNone);
  REQUIRE(ProgressBoard::find(image, "pp").state == CollectiveRecord::State::kNone);
  REQUIRE(ProgressBoard::find({1, 2, 3}, "dp").state == CollectiveRecord::State::kNone);
  REQUIRE(board.try_describe() ==
          "  rank 3 is in all_reduce #9 (gradient bucket 1, 4 x F32) of group dp");
  board.close(a);
  board.close(b);
}

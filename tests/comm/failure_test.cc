#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "cluster/local_boards.h"
#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {
const CommBackend kFailingBackends[] = {CommBackend::kGloo, CommBackend::kSharedMemory};

/// Plays a rank that takes part in nothing until the others report it missing. First it publishes
/// its state, so that its peers know where it is even if its heartbeat is late.
void play_missing_rank(Rendezvous& rendezvous) {
  rendezvous.view_members({rendezvous.rank()}, "world");
  rendezvous.all_gather_text("away", "");
  rendezvous.all_gather_text("noticed", "");
}

/// Runs calls of a rank that waits for the missing one. The calls must fail, and wait for at most
/// `limit` once the missing rank stays away.
template <typename Body>
void require_failure_within(Rendezvous& rendezvous, Communicator& group,
                            std::chrono::milliseconds limit, Body body) {
  rendezvous.all_gather_text("away", "");
  group.set_timeout(limit);
  try {
    body();
  } catch (const Error&) {
    rendezvous.all_gather_text("noticed", "");
    throw;
  }
  bug("nobody was missed");
}

std::string own_process_text() {
  const PeerIdentity self = read_own_identity();
  return cat(" (process ", self.pid, " on ", self.host, ")");
}

CollectiveRecord collective_record(int64_t sequence, CollectiveState state, const char* site = "") {
  CollectiveRecord result{.sequence = sequence,
                          .count = 4,
                          .kind = CollectiveKind::kAllReduce,
                          .dtype = DType::kF32,
                          .state = state};
  std::string_view(site).copy(result.site, sizeof result.site - 1);
  return result;
}
}  // namespace

TEST_CASE("a missing rank is named with the collective, its call site and the rank's last one") {
  for (const CommBackend backend : kFailingBackends) {
    std::vector<std::string> failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      std::vector<float> data(4, 1.0F);
      group->all_reduce(data.data(), 4, DType::kF32, ReduceOp::kSum, {"gradient bucket 6"}).wait();
      if (rendezvous.rank() == 1) return play_missing_rank(rendezvous);
      require_failure_within(rendezvous, *group, 400ms, [&] {
        group->all_reduce(data.data(), 4, DType::kF32, ReduceOp::kSum, {"gradient bucket 7"})
            .wait();
      });
    });
    CAPTURE(backend_name(backend));
    REQUIRE(failures[1].empty());
    // Either rank may have noticed only that the other one aborted.
    const bool first = failures[0].find("rank 1" + own_process_text() + " has not entered it") !=
                       std::string::npos;
    const std::string& message = first ? failures[0] : failures[2];
    REQUIRE_THAT(message, Catch::StartsWith(cat("rank ", first ? 0 : 2, " waited ")) ||
                              Catch::StartsWith(cat("rank ", first ? 0 : 2, " lost a ")));
    REQUIRE_THAT(
        message,
        Catch::Contains(" in all_reduce #2 (gradient bucket 7, 4 x F32) of group world: rank 1" +
                        own_process_text() +
                        " has not entered it; its last was all_reduce #1 (gradient bucket 6, 4 "
                        "x F32), finished "));
  }
}

TEST_CASE("ranks that disagree about size, type or operation fail before anything is sent") {
  for (const CommBackend backend : kFailingBackends) {
    const auto sizes = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      std::vector<float> data(8);
      group
          ->all_reduce(data.data(), rendezvous.rank() == 0 ? 8 : 7, DType::kF32, ReduceOp::kSum,
                       {"bucket 3"})
          .wait();
    });
    REQUIRE(sizes[0] ==
            "the ranks of group world disagree: rank 0 is in all_reduce #1 (bucket 3, 8 x F32), "
            "rank 1 is in all_reduce #1 (bucket 3, 7 x F32)\n  remedy: give all ranks the "
            "same program and config; if they have them, please report this");
    REQUIRE(sizes[1] == sizes[0]);
    const auto kinds = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
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
      const auto group = open_world(rendezvous, backend);
      std::vector<float> data(8);
      if (rendezvous.rank() == 0) {
        group->send(data.data(), 8, DType::kF32, 1, {"activation"}).wait();
      } else {
        group->receive(data.data(), 7, DType::kF32, 0, {"activation"}).wait();
      }
    });
    REQUIRE_THAT(failures[1], Catch::StartsWith("rank 0 does send #1 (activation, 8 x F32) but "
                                                "rank 1 does receive #1 (activation, 7 x F32)"));
    // With Gloo the sender may have finished already.
    if (backend == CommBackend::kSharedMemory)
      REQUIRE_THAT(failures[0],
                   Catch::StartsWith(cat(
                       "rank 0 lost a peer in send #1 (activation, 8 x F32) of group world: rank 1",
                       own_process_text(), " gave up in receive #1 (activation, 7 x F32)")));
  }
}

TEST_CASE("a receive without a send times out and names the sender") {
  for (const CommBackend backend : kFailingBackends) {
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend);
      float data = 0;
      if (rendezvous.rank() == 0) return play_missing_rank(rendezvous);
      require_failure_within(rendezvous, *group, 300ms, [&] {
        group->receive(&data, 1, DType::kF32, 0, {"activation"}).wait();
      });
    });
    REQUIRE_THAT(failures[1],
                 Catch::StartsWith("rank 1 waited ") &&
                     Catch::Contains(" in receive #1 (activation, 1 x F32) of group world: rank 0 "
                                     "is running but has not taken part"));
  }
}

TEST_CASE(
    "a rank that closes a group in which another still waits is named as one that has left it") {
  for (const CommBackend backend : kFailingBackends) {
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      auto group = open_world(rendezvous, backend);
      group->barrier({"start"});
      if (rendezvous.rank() == 1) {
        group.reset();
        return play_missing_rank(rendezvous);
      }
      require_failure_within(rendezvous, *group, 20s, [&] { group->barrier({"end"}); });
    });
    REQUIRE(failures[1].empty());
    REQUIRE_THAT(failures[0], Catch::StartsWith("rank 0 lost a ") &&
                                  Catch::Contains(cat(" in barrier #2 (end) of group world: rank 1",
                                                      own_process_text(), " has left the group")));
  }
}

TEST_CASE("a rank that gives up makes the others fail at once, not at the timeout") {
  for (const CommBackend backend : kFailingBackends) {
    CAPTURE(backend_name(backend));
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      // The aborting rank stays until the other rank has noticed, because nothing else would report
      // the abort.
      const auto group = open_world(rendezvous, backend, 300s);
      float data = 0;
      if (rendezvous.rank() == 1) {
        const auto shown = [&] { return rendezvous.view_members({0}, "world")[0].record; };
        const auto waits = [](const CollectiveRecord& last) {
          return last.sequence == 1 && last.state == CollectiveState::kEntered;
        };
        while (!waits(shown())) continue;
        group->abort("disk full");
        rendezvous.all_gather_text("noticed", "");
        return;
      }
      try {
        group->all_reduce(&data, 1, DType::kF32, ReduceOp::kSum, {"loss"}).wait();
      } catch (const Error&) {
        rendezvous.all_gather_text("noticed", "");
        throw;
      }
    });
    REQUIRE_THAT(failures[0],
                 Catch::StartsWith("rank 0 lost a peer in all_reduce #1 (loss, 1 x F32)"));
    REQUIRE(failures[1] == "");
  }
}

TEST_CASE("a rank that gives up releases a rank that waits for its message") {
  for (const CommBackend backend : kFailingBackends) {
    CAPTURE(backend_name(backend));
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, backend, 300s);
      float data = 0;
      if (rendezvous.rank() == 1) {
        group->abort("disk full");
        rendezvous.all_gather_text("noticed", "");
        return;
      }
      try {
        group->receive(&data, 1, DType::kF32, 1, {"activation"}).wait();
      } catch (const Error&) {
        rendezvous.all_gather_text("noticed", "");
        throw;
      }
    });
    REQUIRE_THAT(failures[0],
                 Catch::StartsWith("rank 0 lost a peer in receive #1 (activation, 1 x F32)"));
    REQUIRE(failures[1] == "");
  }
}

TEST_CASE("a failure in another thread of a rank ends its wait for a message over Gloo") {
  for (const bool sends : {false, true}) {
    CAPTURE(sends);
    const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
      const auto group = open_world(rendezvous, CommBackend::kGloo, 300s);
      if (rendezvous.rank() == 1) {
        rendezvous.all_gather_text("noticed", "");
        return;
      }
      // The kernel's buffers do not take this message while nobody receives it.
      std::vector<float> data(size_t{16} << 20);
      const auto count = static_cast<int64_t>(data.size());
      std::chrono::steady_clock::time_point aborted;
      std::jthread other_lane([&] {
        std::this_thread::sleep_for(300ms);
        aborted = std::chrono::steady_clock::now();
        group->abort("disk full");
      });
      try {
        if (sends) group->send(data.data(), count, DType::kF32, 1, {"activation"}).wait();
        group->receive(data.data(), count, DType::kF32, 1, {"activation"}).wait();
      } catch (const Error&) {
        const auto ended = std::chrono::steady_clock::now();
        rendezvous.all_gather_text("noticed", "");
        other_lane.join();
        // The thread that watches the peers would also end the wait, with the same error, but only
        // after two of its checks, which are a second apart.
        require(ended - aborted < 1s, "abort() itself ends the wait");
        throw;
      }
    });
    REQUIRE(failures[0] == "rank 0 gave up group world because of another failure");
    REQUIRE(failures[1] == "");
  }
}

TEST_CASE("Gloo leaves the memory of a collective alone once a rank has given it up") {
  constexpr int kLateRank = 2;
  constexpr int64_t kCount = 1 << 18;
  using Begin = Work (*)(Communicator & group, float* in, float* out);
  const std::vector<Begin> collectives = {
      [](Communicator& group, float* in, float* out) {
        return group.all_to_all(in, out, kCount, DType::kF32, {"tokens"});
      },
      [](Communicator& group, float* in, float* out) {
        return group.all_gather(in, out, kCount, DType::kF32, {"parameters"});
      },
      [](Communicator& group, float*, float* out) {
        return group.broadcast(out, kCount, DType::kF32, kLateRank, {"state"});
      }};
  for (size_t i = 0; i < collectives.size(); ++i) {
    CAPTURE(i);
    const auto failures = run_ranks(3, [&](Rendezvous& rendezvous) {
      const auto group = open_communicator(
          rendezvous, "world", all_ranks(3),
          {.backend = CommBackend::kGloo, .timeout = 300s, .checked_collectives = 0});
      const bool is_late = rendezvous.rank() == kLateRank;
      std::vector<float> in(3 * kCount, 1.0F), out(3 * kCount, 1.0F);
      if (is_late) rendezvous.all_gather_text("given up", "");
      std::jthread other_lane([&] {
        if (is_late) return;
        std::this_thread::sleep_for(100ms);
        group->abort("disk full");
      });
      const std::string error =
          testing::error_text_of([&] { collectives[i](*group, in.data(), out.data()).wait(); });
      require(is_late || !error.empty(), "a rank that aborts its group leaves the collective");
      // The caller uses the memory for something else, while the late rank takes part.
      std::ranges::fill(out, 2.0F);
      if (!is_late) rendezvous.all_gather_text("given up", "");
      rendezvous.all_gather_text("late rank is done", "");
      require(std::ranges::count(out, 2.0F) == 3 * kCount, "the memory keeps its new contents");
    });
    REQUIRE(failures == std::vector<std::string>(3));
  }
}

TEST_CASE("a broken communicator refuses further calls with the first reason") {
  const auto failures = run_ranks(2, [&](Rendezvous& rendezvous) {
    const auto group = open_world(rendezvous, CommBackend::kSharedMemory);
    if (rendezvous.rank() == 1) return play_missing_rank(rendezvous);
    require_failure_within(rendezvous, *group, 200ms, [&] {
      float data = 0;
      try {
        group->all_reduce(&data, 1, DType::kF32, ReduceOp::kSum, {"a"}).wait();
      } catch (const Error&) {
      }
      group->barrier({"b"});
    });
  });
  REQUIRE_THAT(failures[0],
               Catch::StartsWith("group world was aborted by an earlier failure: rank 0 waited "));
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
               Catch::StartsWith("group dp needs NCCL, but this ftrun was built without CUDA") ||
                   Catch::Contains("NCCL"));
}

TEST_CASE("dead ranks are blamed before late ones, and ranks that gave up last") {
  using State = CollectiveState;
  const CollectiveRecord own_record = collective_record(5, State::kEntered);
  PeerView self{.global_rank = 0, .record = own_record};
  PeerView dead{.global_rank = 1,
                .identity = {.host = "n1", .pid = 7},
                .process = ProcessState::kGone,
                .record = collective_record(4, State::kFinished)};
  PeerView late{.global_rank = 2, .record = collective_record(4, State::kFinished)};
  PeerView gave_up{.global_rank = 3, .record = collective_record(5, State::kAborted)};
  REQUIRE(explain_peers({self, dead, late, gave_up}, own_record, 0).text ==
          "rank 1 (process 7 on n1) is gone");
  dead.process = ProcessState::kStopped;
  REQUIRE(explain_peers({self, dead, late, gave_up}, own_record, 0).text ==
          "rank 1 (process 7 on n1) is stopped");
  REQUIRE_THAT(explain_peers({self, late, gave_up}, own_record, 0).text,
               Catch::StartsWith("rank 2 has not entered it; its last was all_reduce #4 (4 x F32), "
                                 "finished "));
  REQUIRE(explain_peers({self, gave_up}, own_record, 0).text ==
          "rank 3 gave up in all_reduce #5 (4 x F32)");
  late.record = own_record;
  REQUIRE(explain_peers({self, late}, own_record, 0).text ==
          "every rank has entered it and none is known to be lost");
  late.record.state = State::kLeft;
  REQUIRE(explain_peers({self, late}, own_record, 0).text == "rank 2 has left the group");
  late.record = collective_record(0, State::kNone);
  late.is_silent = true;
  REQUIRE(explain_peers({self, late}, own_record, 0).text ==
          "rank 2 does not respond; it has entered no collective of the group yet");
}

TEST_CASE("the progress board survives its trip through the store") {
  ProgressBoard board(3);
  ProgressBoard::CommunicatorSlot* a = board.open("dp", {1, 3});
  ProgressBoard::CommunicatorSlot* b = board.open("tp");
  a->enter(collective_record(9, CollectiveState::kNone, "gradient bucket 1"));
  board.show_phase("step 4");
  board.enter_lane(0, make_activity(ActivityKind::kOwnWork, "forward layer 2"));
  const RankState seen = decode_state(board.encoded_state());
  REQUIRE(describe(ProgressBoard::find_record(seen, "dp")) ==
          "all_reduce #9 (gradient bucket 1, 4 x F32)");
  REQUIRE(ProgressBoard::find_record(seen, "dp").state == CollectiveState::kEntered);
  REQUIRE(ProgressBoard::find_record(seen, "tp").state == CollectiveState::kNone);
  REQUIRE(ProgressBoard::find_record(seen, "pp").state == CollectiveState::kNone);
  REQUIRE(seen.find_group("dp")->members == std::vector<int>{1, 3});
  REQUIRE_THAT(activity_text(seen), Catch::StartsWith("step 4, forward layer 2, for "));
  REQUIRE(decode_state(std::vector<uint8_t>{1, 2, 3}).empty());
  std::vector<uint8_t> image = board.encoded_state();
  // Data from the network may be anything: a text without terminator or a list of members without
  // end must not be read beyond its field.
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> bad = image;
    for (int flips = 0; flips < 8; ++flips)
      bad[random() % bad.size()] = static_cast<uint8_t>(random());
    bad.resize(random() % (bad.size() + 1));
    const RankState state = decode_state(bad);
    REQUIRE(activity_text(state).size() < 400);
    for (const RankState::GroupState& group : state.groups)
      REQUIRE(describe(group.record).size() < 400);
  }
  REQUIRE(board.describe() ==
          "  rank 3 is in all_reduce #9 (gradient bucket 1, 4 x F32) of group dp");
  board.leave_lane(0);
  REQUIRE_FALSE(find_own_work(board.state()).has_value());
  board.close(a);
  board.close(b);
}

TEST_CASE(
    "a group that was left or given up is shown as such until its slot or its name is reused") {
  using State = CollectiveState;
  ProgressBoard board(3);
  const auto shown = [&](const std::string& group) {
    return ProgressBoard::find_record(board.state(), group).state;
  };
  const auto closed = [&](const std::string& group, State state) {
    ProgressBoard::CommunicatorSlot* slot = board.open(group);
    slot->enter(collective_record(9, State::kNone));
    slot->set_state(state);
    board.close(slot);
  };
  closed("dp", State::kFinished);
  closed("tp", State::kAborted);
  REQUIRE(shown("dp") == State::kLeft);
  REQUIRE(shown("tp") == State::kAborted);
  ProgressBoard::CommunicatorSlot* again = board.open("tp");
  REQUIRE(shown("tp") == State::kNone);
  for (int i = 0; i < 2 * BoardTable::kGroups; ++i) closed(cat(i), State::kEntered);
  REQUIRE(shown("tp") == State::kNone);
  REQUIRE(shown(cat(2 * BoardTable::kGroups - 1)) == State::kLeft);
  REQUIRE(board.state().groups.size() == BoardTable::kGroups);
  board.close(again);
}

TEST_CASE("long groups are shown as a stride, and irregular ones as unknown") {
  std::vector<int> even;
  for (int rank = 3; rank < 500; rank += 8) even.push_back(rank);
  REQUIRE(decode_members(encode_members(even)) == even);
  REQUIRE(decode_members(encode_members({5, 6, 9})) == std::vector<int>{5, 6, 9});
  even.push_back(1000);
  REQUIRE(decode_members(encode_members(even)).empty());
}

TEST_CASE(
    "what a rank writes to its supervisor's memory is read there while it changes, and only under "
    "its own name") {
  LocalBoards made = LocalBoards::make(2);
  LocalBoards mapped = LocalBoards::open(OwnedFd(::dup(made.fd())));
  REQUIRE(mapped.count() == 2);
  ProgressBoard board(5, &mapped.table(1));
  REQUIRE(made.find_table(5, ::getpid()) == &made.table(1));
  REQUIRE(made.find_table(4, ::getpid()) == nullptr);
  REQUIRE(made.find_table(5, 1) == nullptr);
  ProgressBoard::CommunicatorSlot* slot = board.open("dp", {4, 5});
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (int64_t i = 1; i <= 100'000; ++i) {
      CollectiveRecord now = collective_record(i, CollectiveState::kNone);
      now.count = i;
      slot->enter(now);
    }
    over = true;
  });
  int64_t torn = 0;
  while (!over) {
    const CollectiveRecord seen = ProgressBoard::find_record(read_state(made.table(1)), "dp");
    torn += seen.state != CollectiveState::kNone && seen.count != seen.sequence ? 1 : 0;
  }
  writer.join();
  REQUIRE(torn == 0);
  REQUIRE(LocalBoards::open(OwnedFd(::dup(0))).count() == 0);
}

namespace {
using State = CollectiveState;

/// Returns the view of a rank: its groups, and the work that it does on its own (`alone`), if any.
PeerView view_of_rank(int rank, std::vector<RankState::GroupState> groups,
                      const char* alone = nullptr) {
  PeerView view{.global_rank = rank, .process = ProcessState::kRunning};
  view.state.phase = make_activity(ActivityKind::kOwnWork, "step 12");
  if (alone != nullptr) view.state.lanes.push_back(make_activity(ActivityKind::kOwnWork, alone));
  view.state.groups = std::move(groups);
  return view;
}

PeerView with_record_of_group(PeerView view, const std::string& group) {
  view.record = ProgressBoard::find_record(view.state, group);
  return view;
}
}  // namespace

TEST_CASE("a missing rank that waits in another group leads to the rank that waits for nobody") {
  // Rank 0 waits in dp for rank 1, which waits in tp for rank 3, which waits in pp
  // for rank 7, which computes.
  const CollectiveRecord own_record = collective_record(5, State::kEntered);
  const RankState::GroupState dp{"dp", {0, 1}, collective_record(4, State::kFinished)};
  const RankState::GroupState tp{"tp", {1, 3}, collective_record(9, State::kEntered)};
  const RankState::GroupState pp{"pp", {3, 7}, collective_record(2, State::kEntered)};
  std::vector<PeerView> views = {
      with_record_of_group(view_of_rank(0, {{"dp", {0, 1}, own_record}}), "dp"),
      with_record_of_group(view_of_rank(1, {dp, tp}), "dp")};
  REQUIRE(ranks_without_views(views, own_record, 0, {}) == std::vector<int>{3});
  const PeerView three =
      view_of_rank(3, {{"tp", {1, 3}, collective_record(8, State::kFinished)}, pp});
  REQUIRE(ranks_without_views(views, own_record, 0, {three}) == std::vector<int>{7});
  PeerView seven = view_of_rank(7, {{"pp", {3, 7}, collective_record(1, State::kFinished)}},
                                "forward layer 3 mb 0");
  const WaitExplanation found = explain_peers(views, own_record, 0, {three, seven});
  REQUIRE(found.culprit == 7);
  REQUIRE_THAT(found.text,
               Catch::StartsWith(
                   "rank 1 has not entered it; its last was all_reduce #4 (4 x F32), finished ") &&
                   Catch::Contains(
                       "; it waits in all_reduce #9 (4 x F32) of group tp for rank 3: it waits in "
                       "all_reduce #2 (4 x F32) of group pp for rank 7: it is in step 12, forward "
                       "layer 3 mb 0, for "));
  seven.process = ProcessState::kStopped;
  REQUIRE_THAT(explain_peers(views, own_record, 0, {three, seven}).text,
               Catch::EndsWith("of group pp for rank 7, which is stopped"));
  // The rank that aborted first was waiting too.
  const PeerView given_up =
      view_of_rank(3, {{"tp", {1, 3}, collective_record(8, State::kFinished)},
                       {"pp", {3, 7}, collective_record(2, State::kAborted)}});
  REQUIRE(explain_peers(views, own_record, 0, {given_up, seven}).culprit == 7);
  REQUIRE_THAT(explain_peers(views, own_record, 0, {given_up, seven}).text,
               Catch::EndsWith("for rank 3: it gave up waiting in all_reduce #2 (4 x F32) of group "
                               "pp for rank 7, which is stopped"));
  // A cycle: every rank waits for another one, so none is the culprit.
  seven = view_of_rank(7, {{"pp", {3, 7}, collective_record(1, State::kFinished)},
                           {"dp2", {1, 7}, collective_record(3, State::kEntered)}});
  REQUIRE_THAT(explain_peers(views, own_record, 0, {three, seven}).text,
               Catch::EndsWith("for rank 1: they wait for each other"));
}

TEST_CASE("a rank that entered after it gave up elsewhere leads to the rank it waited for") {
  // All ranks of dp have entered it, rank 1 only after it gave up in tp, where rank 3 was missing.
  const CollectiveRecord own_record = collective_record(5, State::kEntered);
  const RankState::GroupState dp{"dp", {0, 1}, own_record};
  const std::vector<PeerView> views = {
      with_record_of_group(view_of_rank(0, {dp}), "dp"),
      with_record_of_group(
          view_of_rank(1, {dp, {"tp", {1, 3}, collective_record(9, State::kAborted)}}), "dp")};
  REQUIRE(ranks_without_views(views, own_record, 0, {}) == std::vector<int>{3});
  PeerView three = view_of_rank(3, {{"tp", {1, 3}, collective_record(8, State::kFinished)}},
                                "forward layer 3 mb 0");
  const WaitExplanation found = explain_peers(views, own_record, 0, {three});
  REQUIRE(found.culprit == 3);
  REQUIRE_THAT(found.text,
               Catch::StartsWith("rank 1 has entered it; it gave up waiting in all_reduce #9 "
                                 "(4 x F32) of group tp for rank 3: it is in step 12, forward "
                                 "layer 3 mb 0, for "));
  // A rank that has finished or passed the collective does not hold it up.
  for (const CollectiveRecord& record :
       {collective_record(5, State::kFinished), collective_record(6, State::kEntered)}) {
    std::vector<PeerView> further = views;
    further[1].record = record;
    REQUIRE(explain_peers(further, own_record, 0, {three}).culprit == -1);
  }
  // No rank is named without a view of rank 3, nor if rank 3 has come in the meantime.
  REQUIRE(explain_peers(views, own_record, 0).culprit == -1);
  three.state.groups.front().record = collective_record(9, State::kEntered);
  REQUIRE(explain_peers(views, own_record, 0, {three}).text ==
          "every rank has entered it and none is known to be lost");
}

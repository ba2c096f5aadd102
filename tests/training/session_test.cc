// These tests run a rank among others; ranks are threads of this process that connect to each
// other.
#include "training/session.h"

#include <array>
#include <csignal>
#include <future>
#include <string>
#include <vector>

#include "base/error.h"
#include "run_ranks.h"
#include "training/stop_agreement.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::request_of;
using testing::run_sessions;
using testing::single_rank_session;
using Texts = std::vector<std::string>;

/// OfRanks holds a value for each rank, which only the rank's own thread writes.
template <typename T>
using OfRanks = std::vector<T>;

size_t rank_index(const Session& session) {
  return static_cast<size_t>(session.rank());
}

/// Returns the mesh of the session's data-parallel ranks, as this rank sees it.
StateOptions data_mesh(const Session& session) {
  StateOptions state;
  state.data.count = session.world_size();
  state.data.index = session.rank();
  return state;
}

std::string shown_text(Session& session) {
  return session.board().state().phase.what;
}

/// Returns "code: message" of the error that `work` throws; "none" if it throws none.
std::string code_and_message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), ": ", error.message());
  }
  return "none";
}

TEST_CASE("every rank gets the texts of all ranks, in their order") {
  OfRanks<Texts> gathered(3);
  const Texts failures = run_sessions(3, {}, [&](Session& session) {
    gathered[rank_index(session)] =
        session.all_gather_text("letters", std::string(1, "abc"[session.rank()]));
  });
  REQUIRE(failures == Texts(3, ""));
  for (const Texts& texts : gathered) CHECK(texts == Texts{"a", "b", "c"});
}

TEST_CASE("work that fails on one rank fails on all of them, with its name and rank") {
  OfRanks<std::string> errors(3), phases(3);
  OfRanks<int> work_runs(3);
  const Texts failures = run_sessions(3, {}, [&](Session& session) {
    errors[rank_index(session)] = code_and_message_of([&] {
      session.run_on_all_ranks("reading the data", [&] {
        if (session.rank() == 2) throw Error(ExitCode::kBadInput, "x.bin: is torn", "mend it");
        work_runs[rank_index(session)] = 1;
      });
    });
    phases[rank_index(session)] = shown_text(session);
    session.run_on_all_ranks("the next work", [&] { ++work_runs[rank_index(session)]; });
  });
  REQUIRE(failures == Texts(3, ""));
  for (const std::string& error : errors)
    CHECK(error ==
          cat(static_cast<int>(ExitCode::kBadInput), ": reading the data: rank 2: x.bin: is torn"));
  CHECK(work_runs == OfRanks<int>{2, 2, 1});
  CHECK(phases == Texts(3, "reading the data"));
}

TEST_CASE("in a run of one rank, work fails with its own error") {
  const auto session = single_rank_session(request_of(0, 1, {}));
  CHECK(code_and_message_of([&] {
          session->run_on_all_ranks("reading the data", [] {
            throw Error(ExitCode::kBadInput, "x.bin: is torn", "mend it");
          });
        }) == cat(static_cast<int>(ExitCode::kBadInput), ": x.bin: is torn"));
  CHECK(shown_text(*session) == "reading the data");
}

TEST_CASE("broadcast_decision() asks only rank 0, and every rank gets the answer") {
  OfRanks<int> asked(3);
  OfRanks<std::string> texts(3);
  OfRanks<int> yes(3), no(3);
  const Texts failures = run_sessions(3, {}, [&](Session& session) {
    const size_t rank = rank_index(session);
    texts[rank] = session.broadcast_text("the name", [&] {
      ++asked[rank];
      return cat("of rank ", session.rank());
    });
    yes[rank] = session.broadcast_decision("whether", [&] { return session.is_first(); }) ? 1 : 0;
    no[rank] = session.broadcast_decision("whether", [&] { return !session.is_first(); }) ? 1 : 0;
  });
  REQUIRE(failures == Texts(3, ""));
  CHECK(asked == OfRanks<int>{1, 0, 0});
  CHECK(texts == Texts(3, "of rank 0"));
  CHECK(yes == OfRanks<int>(3, 1));
  CHECK(no == OfRanks<int>(3, 0));
}

TEST_CASE("an error in rank 0's answer is an error on every rank") {
  OfRanks<std::string> errors(2);
  const Texts failures = run_sessions(2, {}, [&](Session& session) {
    errors[rank_index(session)] = code_and_message_of([&] {
      session.broadcast_decision("resuming", []() -> bool {
        throw Error(ExitCode::kUsage, "another run's", "choose another folder");
      });
    });
  });
  REQUIRE(failures == Texts(2, ""));
  const std::string expected =
      cat(static_cast<int>(ExitCode::kUsage), ": resuming: rank 0: another run's");
  CHECK(errors == Texts(2, expected));
}

TEST_CASE("ranks with another text than rank 0's are named on every rank") {
  OfRanks<std::string> errors(4);
  const Texts failures = run_sessions(4, {}, [&](Session& session) {
    session.check_ranks_match("the seed", "7");
    errors[rank_index(session)] = code_and_message_of(
        [&] { session.check_ranks_match("the seed", session.rank() % 2 == 0 ? "7" : "8"); });
  });
  REQUIRE(failures == Texts(4, ""));
  const std::string expected =
      cat(static_cast<int>(ExitCode::kUsage), ": the seed differs from rank 0's on ranks 1, 3");
  CHECK(errors == Texts(4, expected));
}

TEST_CASE("nodes with other facts than rank 0's are named, with their differences") {
  std::vector<TrainRequest> requests;
  for (int rank = 0; rank < 3; ++rank) {
    requests.push_back(request_of(rank, 3, {}));
    requests.back().launch.node_name = cat("n", rank);
  }
  OfRanks<std::string> errors(3);
  OfRanks<Texts> nodes(3);
  const Texts failures = run_sessions(requests, [&](Session& session) {
    nodes[rank_index(session)] = session.nodes();
    session.check_nodes_match("data", {{"rows", "4"}, {"model", "a"}});
    errors[rank_index(session)] = code_and_message_of([&] {
      session.check_nodes_match("data",
                                {{"rows", session.rank() == 1 ? "5" : "4"}, {"model", "a"}});
    });
  });
  REQUIRE(failures == Texts(3, ""));
  const std::string expected =
      cat(static_cast<int>(ExitCode::kUsage),
          ": the nodes differ:\n  n1 (rank 1): rows is 5; on n0 (rank 0): 4");
  CHECK(errors == Texts(3, expected));
  CHECK(nodes == OfRanks<Texts>(3, Texts{"n0", "n1", "n2"}));
}

TEST_CASE("ranks that were started with another config are refused, key by key") {
  std::vector<TrainRequest> requests{request_of(0, 2, {}), request_of(1, 2, {})};
  requests[1].config_json = cat(R"({"train": {"seed": )", Config{}.train.seed, R"(, "steps": 6}})");
  const std::string expected =
      "the config differs from rank 0's on rank 1:\n  config.train.steps: rank 0 has 5, rank 1 has "
      "6";
  for (const std::string& failure : run_sessions(requests, [](Session&) {}))
    CHECK_THAT(failure, Catch::Contains(expected));
}

TEST_CASE("ranks that were started with another build are refused") {
  std::vector<TrainRequest> requests{request_of(0, 2, {}), request_of(1, 2, {})};
  requests[0].launch.node_name = "a";
  requests[1].launch.node_name = "b";
  requests[1].build.version = "1.2.4";
  const std::string expected =
      "the nodes differ:\n  b (rank 1): ftrun is 1.2.4 ; on a (rank 0): 1.2.3 ";
  for (const std::string& failure : run_sessions(requests, [](Session&) {}))
    CHECK_THAT(failure, Catch::Contains(expected));
}

TEST_CASE(
    "a stop signal that reached any rank stops all ranks; of several signals the most important "
    "one counts") {
  OfRanks<std::vector<int>> agreed(3);
  const Texts failures = run_sessions(3, {}, [&](Session& session) {
    const auto agree = [&](std::array<int, 3> of_ranks) {
      agreed[rank_index(session)].push_back(session.agree_on_stop(of_ranks[rank_index(session)]));
    };
    session.open_communicators({}, data_mesh(session));
    agree({0, 0, 0});
    agree({0, 0, SIGTERM});
    agree({SIGINT, 0, 0});
    agree({SIGINT, SIGUSR1, SIGTERM});
    agree({SIGHUP, SIGHUP, SIGHUP});
    agree({0, 0, 0});
  });
  REQUIRE(failures == Texts(3, ""));
  for (const std::vector<int>& signals : agreed)
    CHECK(signals == std::vector<int>{0, SIGTERM, SIGINT, SIGUSR1, SIGHUP, 0});
}

TEST_CASE("the numbers of all ranks are summed element by element") {
  OfRanks<std::array<double, 2>> sums(3);
  const Texts failures = run_sessions(3, {}, [&](Session& session) {
    session.open_communicators({}, data_mesh(session));
    std::array<double, 2> numbers{1.0 + session.rank(), 10.0 * session.rank()};
    session.sum(numbers, "numbers");
    sums[rank_index(session)] = numbers;
  });
  REQUIRE(failures == Texts(3, ""));
  for (const auto& sum : sums) CHECK(sum == std::array<double, 2>{6, 30});
}

TEST_CASE("a group for another thread exchanges independently of the session's own") {
  OfRanks<Texts> own(2), beside(2);
  const Texts failures = run_sessions(2, {}, [&](Session& session) {
    const size_t rank = rank_index(session);
    const CheckpointGroup group = session.open_background_group();
    // The other threads of the ranks run in no particular order.
    std::future<void> other = std::async(std::launch::async, [&] {
      beside[rank] = group.all_gather(cat("beside ", session.rank()));
    });
    own[rank] = session.checkpoint_group().all_gather(cat("own ", session.rank()));
    other.get();
  });
  REQUIRE(failures == Texts(2, ""));
  for (const Texts& texts : own) CHECK(texts == Texts{"own 0", "own 1"});
  for (const Texts& texts : beside) CHECK(texts == Texts{"beside 0", "beside 1"});
}

TEST_CASE("the cores of a machine are divided among its ranks") {
  OfRanks<int> threads(2);
  CoreLimit eight;
  for (int i = 0; i < 8; ++i) eight.allowed_cores.push_back(i);
  const Texts failures = run_sessions(
      2, {}, [&](Session& session) { threads[rank_index(session)] = session.share_cores(eight); });
  REQUIRE(failures == Texts(2, ""));
  CHECK(threads == OfRanks<int>{4, 4});
}

TEST_CASE("the time limit of waits follows from the slowest step unless the config sets it") {
  using std::chrono::minutes;
  Config config;
  const auto session = single_rank_session(request_of(0, 1, config));
  session->open_communicators(config, {});
  CHECK(session->timeout() == minutes(30));  // there was no step yet
  session->adapt_timeout(3);
  CHECK(session->timeout() == minutes(10));
  session->adapt_timeout(120);
  CHECK(session->timeout() == minutes(20));
  session->adapt_timeout(1);
  CHECK(session->timeout() == minutes(20));

  config.comm.timeout = 45;
  const auto limited = single_rank_session(request_of(0, 1, config));
  limited->open_communicators(config, {});
  limited->adapt_timeout(120);
  CHECK(limited->timeout() == std::chrono::seconds(45));
}

}  // namespace
}  // namespace ftrun

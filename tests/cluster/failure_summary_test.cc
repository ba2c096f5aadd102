#include "cluster/failure_summary.h"
#include "base/rank_error.h"
#include "base/text.h"

#include <csignal>

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {
constexpr int64_t kSecond = 1'000'000'000;
}

TEST_CASE("a failure report passes the pipe with its line ends, and tabs become spaces") {
  const FailureReport sent{.rank = 3,
                           .unix_ns = 12345678901,
                           .exit_code = 5,
                           .activity = "save",
                           .message = "disk full\n  remedy:\tfree space",
                           .culprit = 2,
                           .is_device_failure = true};
  const auto parsed = parse_failure_line(failure_line(sent));
  REQUIRE(parsed.has_value());
  REQUIRE(parsed->rank == 3);
  REQUIRE(parsed->unix_ns == 12345678901);
  REQUIRE(parsed->exit_code == 5);
  REQUIRE(parsed->activity == "save");
  REQUIRE(parsed->message == "disk full\n  remedy: free space");
  REQUIRE(parsed->culprit == 2);
  REQUIRE(parsed->is_device_failure);
}

TEST_CASE("a report is one line that a pipe takes in one piece, however long the message") {
  const std::string line = failure_line({.message = std::string(100'000, 'x')});
  REQUIRE(line.size() <= 4000);
  REQUIRE(line.back() == '\n');
  REQUIRE(parse_failure_line(line).has_value());
}

TEST_CASE("a failure report that is too long keeps its beginning and its remedy") {
  const auto read_back = [](const std::string& message) {
    const std::string line = failure_line({.activity = "step 3", .message = message});
    REQUIRE(line.size() <= 4000);
    return parse_failure_line(line)->message;
  };
  const std::string remedy = "\n  remedy: give every rank the same config";
  const std::string kept = read_back("the config differs:" + std::string(9'000, 'x') + remedy);
  REQUIRE(kept.starts_with("the config differs:xxx"));
  REQUIRE(kept.ends_with("xxx [...]" + remedy));
  REQUIRE(kept.size() > 3900);
  const std::string fits = "disk full" + std::string(3000, 'y') + remedy;
  REQUIRE(read_back(fits) == fits);
  // A long remedy does not displace the message, and characters stay complete.
  const std::string both = read_back("short\n  remedy: " + std::string(9'000, 'z'));
  REQUIRE(both.starts_with("short [...]\n  remedy: zzz"));
  for (const char* shift : {"", "a", "ab"}) {
    std::string text = shift;
    while (text.size() < 9'000) text += "\u20ac";
    const std::string cut = read_back(text);
    const size_t end = cut.find(" [...]");
    REQUIRE(end != std::string::npos);
    REQUIRE((end - std::string(shift).size()) % 3 == 0);
  }
}

TEST_CASE("a second signal ends the process at once unless it only repeats the first request") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    REQUIRE_FALSE(asks_to_end_at_once(signal, signal, 0));
    REQUIRE_FALSE(asks_to_end_at_once(signal, SIGHUP, 60'000));
    const bool repeats = signal == SIGHUP || signal == SIGUSR1;
    REQUIRE(asks_to_end_at_once(signal, signal, kSameSignalMs) == !repeats);
  }
  REQUIRE(asks_to_end_at_once(SIGTERM, SIGUSR1, 0));
  REQUIRE(asks_to_end_at_once(SIGUSR1, SIGTERM, 0));
  REQUIRE(asks_to_end_at_once(SIGTERM, SIGINT, 0));
  REQUIRE(asks_to_end_at_once(SIGHUP, SIGINT, 0));
  REQUIRE_FALSE(asks_to_end_at_once(SIGHUP, SIGTERM, 0));
  REQUIRE(asks_to_end_at_once(SIGHUP, SIGTERM, kSameSignalMs));
}

TEST_CASE("other lines are not mistaken for reports") {
  for (const char* line :
       {"", "hello", "ftrun-failure-3\t1\t2", "ftrun-failure-3\tx\t0\t1\t-1\t0\t\t",
        "ftrun-failure-3\t1\t0\t1\t-1\tx\t\t", "ftrun-failure-3\t1\t0\t1\t-1\t0\ta"})
    REQUIRE_FALSE(parse_failure_line(line).has_value());
}

TEST_CASE("the earliest report is the cause, whatever the order in which processes ended") {
  const FailureSummary summary = summarize_failures(
      {.exits = {{.rank = 0, .unix_ns = 3 * kSecond, .exit_code = 5},
                 {.rank = 1, .unix_ns = 4 * kSecond, .exit_code = 4},
                 {.rank = 10,
                  .unix_ns = 5 * kSecond,
                  .exit_code = 143,
                  .signal = SIGTERM,
                  .was_asked_to_stop = true},
                 {.rank = 2,
                  .unix_ns = 5 * kSecond,
                  .exit_code = 143,
                  .signal = SIGTERM,
                  .was_asked_to_stop = true}},
       .reports = {{.rank = 0, .unix_ns = 3 * kSecond, .exit_code = 5, .message = "disk full"},
                   {.rank = 1,
                    .unix_ns = 2 * kSecond,
                    .exit_code = 4,
                    .activity = "step 7",
                    .message = "bad file"}},
       .started_ns = 0,
       .log_of = [](int rank) { return "run/logs/rank-" + std::to_string(rank) + ".log"; }});
  REQUIRE(summary.exit_code == 4);
  REQUIRE(summary.text ==
          "rank 1: exit code 4, 2.0s after the start, in step 7: bad file\n"
          "  then rank 0: exit code 5, 1.0s later: disk full\n"
          "  stopped because of it: ranks 2, 10\n"
          "  its log: run/logs/rank-1.log");
  REQUIRE(summary.rank == 1);
  REQUIRE(summary.reason == "bad file");
}

TEST_CASE("a lost peer is a consequence even when it was reported first") {
  const FailureSummary summary = summarize_failures(
      {.exits = {{.rank = 0, .unix_ns = 1 * kSecond, .exit_code = 6},
                 {.rank = 1, .unix_ns = 2 * kSecond, .exit_code = 137, .signal = SIGKILL}},
       .reports = {{.rank = 0, .unix_ns = 1 * kSecond, .exit_code = 6, .message = "lost rank 1"}}});
  REQUIRE(summary.exit_code == 137);
  REQUIRE(summary.text ==
          "rank 1: killed by signal 9 (Killed; the kernel does this when memory runs out), 2.0s "
          "after the start\n  then rank 0: exit code 6, 0.0s later: lost rank 1");
  REQUIRE(summary.rank == 1);
  REQUIRE(summary.reason ==
          "killed by signal 9 (Killed; the kernel does this when memory runs out)");
}

TEST_CASE("if every rank only lost a peer, the result is a lost peer") {
  const FailureSummary summary =
      summarize_failures({.exits = {{.rank = 0, .unix_ns = 1 * kSecond, .exit_code = 6},
                                    {.rank = 1,
                                     .unix_ns = 2 * kSecond,
                                     .exit_code = 137,
                                     .signal = SIGKILL,
                                     .was_asked_to_stop = true}}});
  REQUIRE(summary.exit_code == 6);
}

TEST_CASE("ranks that ended as requested are not failures") {
  REQUIRE(summarize_failures({.exits = {{.rank = 0}, {.rank = 1}}}).exit_code == 0);
  REQUIRE(
      summarize_failures({.exits = {{.rank = 0, .exit_code = 75}, {.rank = 1, .exit_code = 75}}})
          .exit_code == 75);
  const FailureSummary interrupted = summarize_failures(
      {.exits = {{.rank = 0, .exit_code = 130, .signal = SIGINT}, {.rank = 1, .exit_code = 130}},
       .forwarded_signal = SIGINT});
  REQUIRE(interrupted.exit_code == 130);
  REQUIRE(interrupted.text.empty());
  REQUIRE(interrupted.rank == -1);
}

TEST_CASE("if one rank was asked to stop, the other ranks also count as ended on request") {
  const FailureSummary stopped =
      summarize_failures({.exits = {{.rank = 0, .exit_code = 143}, {.rank = 1, .exit_code = 143}}});
  REQUIRE(stopped.exit_code == 143);
  REQUIRE(stopped.text.empty());
  REQUIRE(
      summarize_failures({.exits = {{.rank = 0, .exit_code = 129}, {.rank = 1, .exit_code = 129}}})
          .text.empty());
  const FailureSummary killed =
      summarize_failures({.exits = {{.rank = 0, .exit_code = 143, .signal = SIGTERM}}});
  REQUIRE(killed.exit_code == 143);
  REQUIRE_FALSE(killed.text.empty());
}

TEST_CASE("a message of all ranks is shown once") {
  const FailureSummary summary = summarize_failures(
      {.exits = {{.rank = 0, .unix_ns = 9, .exit_code = 5},
                 {.rank = 1, .unix_ns = 9, .exit_code = 5}},
       .reports = {{.rank = 0, .unix_ns = 5, .exit_code = 5, .message = "the disk is full"},
                   {.rank = 1, .unix_ns = 6, .exit_code = 5, .message = "the disk is full"}}});
  REQUIRE(summary.text == "ranks 0, 1: exit code 5, 0.0s after the start: the disk is full");
}

TEST_CASE("a report says which rank's failure it is") {
  const Error full(ExitCode::kEnvironment, "rank 0: disk full");
  REQUIRE(make_failure_report(1, full, full).culprit == -1);
  REQUIRE(make_failure_report(1, RankError(full, 0, false), full).culprit == 0);
  REQUIRE(make_failure_report(0, RankError(full, 0, false), full).culprit == -1);
  REQUIRE_FALSE(make_failure_report(1, RankError(full, 0, false), full).is_device_failure);
  REQUIRE(
      make_failure_report(1, RankError(full, RankError::kThisRank, true), full).is_device_failure);
  REQUIRE(make_failure_report(1, RankError(full, RankError::kThisRank, true), full).culprit == -1);
  // A lost peer is never the cause.
  const Error lost(ExitCode::kPeerLost, "rank 0: lost rank 2");
  REQUIRE(make_failure_report(1, RankError(lost, 0, false), lost).culprit == -1);
  // The rank for which it waited is.
  REQUIRE(make_failure_report(1, AbsentRankError(lost, 2), lost).culprit == 2);
  REQUIRE(make_failure_report(2, AbsentRankError(lost, 2), lost).culprit == -1);
  REQUIRE(make_failure_report(1, AbsentRankError(lost, std::nullopt), lost).culprit == -1);
  // A failure that another rank has stored may have any exit code.
  REQUIRE(make_failure_report(1, AbsentRankError(full, 2), full).culprit == -1);
}

TEST_CASE(
    "a failure belongs to a rank that a signal ended, that held up the others or whose GPU "
    "failed") {
  const auto summary = [](RankExit rank_exit, FailureReport report) {
    return summarize_failures({.exits = {rank_exit}, .reports = {report}});
  };
  REQUIRE(summarize_failures({.exits = {{.rank = 1, .exit_code = 137, .signal = SIGKILL}}})
              .belongs_to_rank);
  REQUIRE_FALSE(summarize_failures({.exits = {{.rank = 1, .exit_code = 5}}}).belongs_to_rank);
  const FailureSummary hang =
      summary({.exit_code = 6}, {.exit_code = 6, .message = "rank 1 is late", .culprit = 1});
  REQUIRE((hang.belongs_to_rank && hang.rank == 1));
  REQUIRE_FALSE(
      summary({.exit_code = 6}, {.exit_code = 6, .message = "no peer came"}).belongs_to_rank);
  REQUIRE_FALSE(
      summary({.exit_code = 5}, {.exit_code = 5, .message = "metrics.jsonl: write failed"})
          .belongs_to_rank);
  REQUIRE(
      summary({.exit_code = 5}, {.exit_code = 5, .message = "CUDA says", .is_device_failure = true})
          .belongs_to_rank);
  // The rank crashed after it had reported a full disk.
  REQUIRE_FALSE(
      summary({.exit_code = 139, .signal = SIGSEGV}, {.exit_code = 5, .message = "disk full"})
          .belongs_to_rank);
}

TEST_CASE(
    "of ranks that waited for others, the one that waited for nobody is the cause; in a ring of "
    "waits it is the first that reported") {
  const auto summary = [](std::vector<FailureReport> reports) {
    std::vector<RankExit> exits;
    for (FailureReport& report : reports) {
      report.exit_code = 6;
      report.message = cat("rank ", report.culprit, " did not arrive in time");
      exits.push_back({.rank = report.rank, .exit_code = 6});
    }
    return summarize_failures({.exits = std::move(exits), .reports = std::move(reports)});
  };
  const FailureSummary chain = summary({{.rank = 2, .unix_ns = 1, .culprit = 0},
                                        {.rank = 0, .unix_ns = 3, .culprit = 1},
                                        {.rank = 3, .unix_ns = 2, .culprit = 1}});
  REQUIRE((chain.rank == 1 && chain.reason == "rank 1 did not arrive in time"));
  REQUIRE(chain.text.starts_with("ranks 0, 3: "));
  REQUIRE(summary({{.rank = 2, .unix_ns = 1, .culprit = 0},
                   {.rank = 0, .unix_ns = 3, .culprit = 2},
                   {.rank = 1, .unix_ns = 2, .culprit = 0}})
              .rank == 0);
}

TEST_CASE("a failure that all ranks report about one rank is that rank's, whoever reports first") {
  const auto summarize = [](bool is_device_failure) {
    const auto report = [&](int rank, int64_t at, int culprit) {
      return FailureReport{.rank = rank,
                           .unix_ns = at,
                           .exit_code = 5,
                           .message = "opening: rank 0: refused",
                           .culprit = culprit,
                           .is_device_failure = is_device_failure};
    };
    return summarize_failures({.exits = {{.rank = 0, .exit_code = 5}, {.rank = 1, .exit_code = 5}},
                               .reports = {report(1, 3, 0), report(0, 4, -1)}});
  };
  REQUIRE(summarize(false).rank == 0);
  REQUIRE_FALSE(summarize(false).belongs_to_rank);
  REQUIRE((summarize(true).rank == 0 && summarize(true).belongs_to_rank));
}

TEST_CASE("a rank that used up its CPU time was not killed for memory") {
  const auto ending_text = [](double seconds, int signal, int64_t limit = 20) {
    return summarize_failures({.exits = {{.exit_code = 128 + signal,
                                          .signal = signal,
                                          .cpu_seconds = seconds,
                                          .cpu_seconds_limit = limit}}})
        .reason;
  };
  REQUIRE(ending_text(20.01, SIGKILL) ==
          "killed by signal 9 (Killed; it has used the 20 s of CPU time that a process may "
          "use: raise ulimit -t)");
  REQUIRE(ending_text(20.01, SIGXCPU) ==
          "killed by signal 24 (CPU time limit exceeded; it has used the 20 s of CPU time "
          "that a process may use: raise ulimit -t)");
  REQUIRE(ending_text(18.5, SIGKILL) == ending_text(20.01, SIGKILL));
  REQUIRE(ending_text(5, SIGKILL) ==
          "killed by signal 9 (Killed; the kernel does this when memory runs out, and after the 20 "
          "s of CPU time that a process may use (ulimit -t); seconds used: 5.0)");
  REQUIRE(ending_text(5000, SIGKILL, 0) ==
          "killed by signal 9 (Killed; the kernel does this when memory runs out)");
  REQUIRE(ending_text(20.01, SIGSEGV) == "killed by signal 11 (Segmentation fault)");
}

TEST_CASE("a run that SIGUSR1 stops does not end with the code of a killed process") {
  const auto code = [](int forwarded, RankExit rank_exit) {
    return summarize_failures({.exits = {rank_exit}, .forwarded_signal = forwarded}).exit_code;
  };
  // The ranks were: killed by the second signal; ended by the first one before it was handled;
  // both.
  REQUIRE(code(SIGUSR1, {.exit_code = 137, .signal = SIGKILL, .was_asked_to_stop = true}) == 75);
  REQUIRE(code(SIGUSR1, {.exit_code = 138, .signal = SIGUSR1}) == 75);
  REQUIRE(code(SIGTERM, {.exit_code = 137, .signal = SIGKILL, .was_asked_to_stop = true}) == 143);
  REQUIRE(code(SIGTERM, {.exit_code = 143, .signal = SIGTERM}) == 143);
  REQUIRE(stop_exit_code(SIGUSR1) == 75);
  REQUIRE(stop_exit_code(SIGINT) == 130);
}

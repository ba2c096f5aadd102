#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "comm/listen_socket.h"
#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

TEST_CASE("every rank gets every text, by rank, as often as a key is used") {
  const auto failures = run_ranks(3, [](Rendezvous& rendezvous) {
    for (int i = 0; i < 5; ++i) {
      const auto texts = rendezvous.exchange_text("hash", cat(i, "-", rendezvous.rank()));
      require(texts == std::vector<std::string>{cat(i, "-0"), cat(i, "-1"), cat(i, "-2")}, "texts");
    }
    if (rendezvous.rank() != 1) {
      const auto some = rendezvous.exchange_text("some", cat(rendezvous.rank()), {0, 2});
      require(some == std::vector<std::string>{"0", "2"}, "some ranks");
    }
    rendezvous.shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(3));
}

TEST_CASE("a connection beside another one exchanges apart from it, and neither waits for the other") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    const auto beside = rendezvous.beside();
    const std::string me = cat(rendezvous.rank());
    std::vector<std::string> slow;
    std::atomic<bool> came = false;
    std::thread other([&] {
      // Rank 0 waits here for what rank 1 gives once both have come far.
      while (rendezvous.rank() == 1 && !came) std::this_thread::sleep_for(1ms);
      slow = beside->exchange_text("text", "beside " + me, Patience::kWhileAlive);
    });
    for (int i = 0; i < 20; ++i)
      require(rendezvous.exchange_text("text", cat(i, me)) == std::vector<std::string>{cat(i, "0"), cat(i, "1")}, "texts");
    came = true;
    other.join();
    require(slow == std::vector<std::string>{"beside 0", "beside 1"}, "texts beside");
    rendezvous.shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(2));
}

TEST_CASE("an exchange names the ranks that did not come") {
  auto all = Rendezvous::in_process(3, 300ms);
  REQUIRE_THROWS_WITH(
      all[1]->exchange_text("program", "x"),
      Catch::StartsWith("rank 1 waited 0.") &&
          Catch::Contains("s for \"program\": rank 0, 2 did not come\n  remedy: look "
                          "at that rank's own log first"));
}

TEST_CASE("an exchange with patience waits for ranks that live, however long they work") {
  auto all = Rendezvous::in_process(2, 300ms, 20ms);
  std::vector<std::string> texts;
  std::thread worker([&] {
    std::this_thread::sleep_for(1500ms);
    all[0]->exchange_text("export", "done", Patience::kWhileAlive);
  });
  REQUIRE_NOTHROW(texts = all[1]->exchange_text("export", "waited", Patience::kWhileAlive));
  worker.join();
  REQUIRE(texts == std::vector<std::string>{"done", "waited"});
}

TEST_CASE("an exchange with patience gives up a rank that shows no sign of life") {
  auto all = Rendezvous::in_process(2, 300ms, 20ms);
  all[0].reset();
  REQUIRE_THROWS_WITH(all[1]->exchange_text("export", "x", Patience::kWhileAlive),
                      Catch::StartsWith("rank 1 waited ") &&
                          Catch::Contains("s for \"export\": rank 0 did not come\n"));
}

TEST_CASE("a posted text is found by any rank at any time") {
  auto all = Rendezvous::in_process(2);
  REQUIRE_FALSE(all[1]->find("stop").has_value());
  all[0]->post("stop", "rank 0: disk full");
  REQUIRE(all[1]->find("stop") == "rank 0: disk full");
}

TEST_CASE("ranks meet over TCP, on a socket bound to one address") {
  ListenSocket socket = listen_on("127.0.0.1", 0);
  const int port = socket.port;
  const int fd = socket.fd.release();
  std::vector<std::string> heard(2);
  std::vector<std::thread> threads;
  std::string listening;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto rendezvous = Rendezvous::connect({.rank = rank,
                                                   .world = 2,
                                                   .port = port,
                                                   .listen_fd = rank == 0 ? fd : -1,
                                                   .timeout = 20s,
                                                   .token = "a token of the test"});
      if (rank == 0) {
        std::ifstream file("/proc/net/tcp");
        listening.assign(std::istreambuf_iterator<char>(file), {});
      }
      heard[static_cast<size_t>(rank)] =
          rendezvous->exchange_text("k", cat("from ", rank))[static_cast<size_t>(1 - rank)];
      rendezvous->shutdown();
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(heard == std::vector<std::string>{"from 1", "from 0"});
  char any[32];
  std::snprintf(any, sizeof any, "00000000:%04X 00000000:0000 0A", port);
  char loopback[32];
  std::snprintf(loopback, sizeof loopback, "0100007F:%04X 00000000:0000 0A", port);
  REQUIRE(listening.find(any) == std::string::npos);
  REQUIRE(listening.find(loopback) != std::string::npos);
}

TEST_CASE("a port in use is named, with what to do") {
  const ListenSocket taken = listen_on("127.0.0.1", 0);
  try {
    Rendezvous::connect({.rank = 0, .world = 2, .port = taken.port, .timeout = 1s, .token = "a token of the test"});
    FAIL("connected");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kEnvironment);
    REQUIRE(error.message() ==
            cat("port ", taken.port, " on 127.0.0.1 is in use by another process"));
    REQUIRE(error.remedy() == "choose another MASTER_PORT, or end the other job");
  }
}

TEST_CASE("an address that is not of this machine is named") {
  REQUIRE_THROWS_WITH(listen_on("192.0.2.1", 29500),
                      Catch::StartsWith("rank 0 cannot serve the rendezvous on 192.0.2.1: this "
                                        "machine does not have that address"));
  REQUIRE_THROWS_WITH(
      listen_on("no such host", 29500),
      Catch::StartsWith("cannot resolve the rendezvous address \"no such host\": "));
}

TEST_CASE("a rank whose rank 0 never comes says where it looked") {
  ListenSocket closed = listen_on("127.0.0.1", 0);
  const int port = closed.port;
  closed.fd.reset();
  try {
    Rendezvous::connect({.rank = 1, .world = 2, .port = port, .timeout = 1s, .token = "a token of the test"});
    FAIL("connected");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kPeerLost);
    REQUIRE_THAT(error.message(),
                 Catch::StartsWith(cat("rank 1 could not reach the rendezvous of rank 0 at "
                                       "127.0.0.1:",
                                       port, " within 1.0s: ")));
  }
}

TEST_CASE("a rank that looks for an unknown host says so") {
  try {
    Rendezvous::connect(
        {.rank = 1, .world = 2, .address = "no such host", .port = 29500, .timeout = 1s, .token = "a token of the test"});
    FAIL("connected");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kPeerLost);
    REQUIRE_THAT(error.message(),
                 Catch::StartsWith("rank 1 could not reach the rendezvous of rank 0 at no such "
                                   "host:29500 within 1.0s: cannot resolve the rendezvous address "
                                   "\"no such host\": "));
  }
}

TEST_CASE("a descriptor that is no socket is refused") {
  REQUIRE_THROWS_WITH(bound_port(0),
                      Catch::StartsWith("descriptor 0 (FTRUN_STORE_FD) is not a bound socket"));
}

TEST_CASE("a single rank needs no rendezvous") {
  const auto rendezvous = Rendezvous::connect({});
  REQUIRE(rendezvous->exchange_text("k", "alone") == std::vector<std::string>{"alone"});
  rendezvous->shutdown();
}

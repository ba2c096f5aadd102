#include "comm/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "comm/listen_socket.h"
#include "comm/store_access.h"
#include "comm/store_server.h"
#include "ranks.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

TEST_CASE("every rank gets every text, by rank, as often as a key is used") {
  const auto failures = run_ranks(3, [](Rendezvous& rendezvous) {
    for (int i = 0; i < 5; ++i) {
      const auto texts = rendezvous.all_gather_text("hash", cat(i, "-", rendezvous.rank()));
      require(texts == std::vector<std::string>{cat(i, "-0"), cat(i, "-1"), cat(i, "-2")}, "texts");
    }
    if (rendezvous.rank() != 1) {
      const auto some = rendezvous.all_gather_text("some", cat(rendezvous.rank()), {0, 2});
      require(some == std::vector<std::string>{"0", "2"}, "some ranks");
    }
    rendezvous.shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(3));
}

TEST_CASE(
    "a second connection exchanges independently of the first, and neither waits for the other") {
  const auto failures = run_ranks(2, [](Rendezvous& rendezvous) {
    const auto beside = rendezvous.make_connection_for_thread();
    const std::string me = cat(rendezvous.rank());
    std::vector<std::string> slow;
    std::atomic<bool> came = false;
    std::thread other([&] {
      // Rank 0 waits here for a text that rank 1 gives only after both are far along.
      while (rendezvous.rank() == 1 && !came) std::this_thread::sleep_for(1ms);
      slow = beside->all_gather_text("text", "beside " + me, WaitPolicy::kWhileAlive);
    });
    for (int i = 0; i < 20; ++i)
      require(rendezvous.all_gather_text("text", cat(i, me)) ==
                  std::vector<std::string>{cat(i, "0"), cat(i, "1")},
              "texts");
    came = true;
    other.join();
    require(slow == std::vector<std::string>{"beside 0", "beside 1"}, "texts beside");
    rendezvous.shutdown();
  });
  REQUIRE(failures == std::vector<std::string>(2));
}

namespace {

/// Returns Gloo's address with a lower (`step` -1) or higher (1) port, on which nobody listens. The
/// first of the port's two bytes changes, because Gloo compares ports without converting them to
/// this machine's byte order: if the last byte changed, 0xABFF + 1 would be a lower port.
std::string with_other_port(std::string address, int step) {
  const size_t at =
      address.find(std::string("\x7f\0\0\1", 4));  // 127.0.0.1 in a sockaddr_in, after the port
  require(at != std::string::npos && at >= 2, "an address over IPv4");
  uint16_t port = 0;
  address.copy(reinterpret_cast<char*>(&port), sizeof port, at - sizeof port);
  port = htons(static_cast<uint16_t>(ntohs(port) + 256 * step));
  return address.replace(at - sizeof port, sizeof port, reinterpret_cast<const char*>(&port),
                         sizeof port);
}

/// Returns the error of rank 0 in a group over Gloo whose other rank gives its address and then
/// disappears.
std::string error_of_connecting_alone(int step) {
  const std::string name = cat("group", step);
  return run_ranks(2, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 0) {
      open_communicator(rendezvous, name, {0, 1}, {.backend = CommBackend::kGloo, .timeout = 15s});
      return;
    }
    rendezvous.all_gather_text("open/" + name, name + " of ranks 0,1 over gloo");
    const auto store = store_with_prefix(rendezvous, "x/gloo");
    const std::vector<uint8_t> address = store->get(name + "/1/0");
    rendezvous.all_gather_text("gloo/" + name,
                               with_other_port({address.begin() + 1, address.end()}, step));
    rendezvous.post_abort(name, "the test's");
  })[0];
}

}  // namespace

TEST_CASE(
    "a member lost between giving its address and connecting is not waited for to the end of "
    "the time limit") {
  // One of two ranks connects and the other accepts; which one, follows from their ports.
  const std::vector<std::string> messages{error_of_connecting_alone(-1),
                                          error_of_connecting_alone(1)};
  const auto waited = [](const std::string& text) {
    return text.starts_with(
        "rank 0 lost a peer in barrier #0 (connecting over Gloo) of group group");
  };
  const auto refused = [](const std::string& text) {
    return text.starts_with("rank 0 could not connect group group");
  };
  CAPTURE(messages);
  REQUIRE(((waited(messages[0]) && refused(messages[1])) ||
           (refused(messages[0]) && waited(messages[1]))));
}

TEST_CASE("an exchange names the ranks that did not come") {
  auto all = Rendezvous::make_in_process(3, 300ms);
  REQUIRE_THROWS_WITH(
      all[1]->all_gather_text("program", "x"),
      Catch::StartsWith("rank 1 waited ") &&
          Catch::Contains("s for \"program\": ranks 0, 2 did not arrive in time\n  remedy: look "
                          "at that rank's own log first"));
}

TEST_CASE("each of many ranks names those that did not come") {
  constexpr int kWorld = 40;
  auto all = Rendezvous::make_in_process(kWorld, 1500ms);
  std::vector<std::string> heard(kWorld);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank)
    if (rank != 7 && rank != 39)
      threads.emplace_back([&, rank] {
        try {
          all[static_cast<size_t>(rank)]->all_gather_text("program", "x");
        } catch (const Error& error) {
          heard[static_cast<size_t>(rank)] = error.message();
        }
      });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kWorld; ++rank)
    if (rank != 7 && rank != 39)
      CHECK_THAT(heard[static_cast<size_t>(rank)],
                 Catch::EndsWith("s for \"program\": ranks 7, 39 did not arrive in time"));
}

TEST_CASE("each of many ranks names a first rank that did not come") {
  auto all = Rendezvous::make_in_process(40, 300ms);
  REQUIRE_THROWS_WITH(all[1]->all_gather_text("program", "x"),
                      Catch::Contains("s for \"program\": rank 0 did not arrive in time"));
}

TEST_CASE("ranks whose groups differ say so in messages that do not grow with the group") {
  const auto failures = run_ranks(20, [](Rendezvous& rendezvous) {
    const auto backend = rendezvous.rank() == 3 ? CommBackend::kGloo : CommBackend::kSharedMemory;
    open_communicator(rendezvous, "world", all_ranks(20), {.backend = backend, .timeout = 20s});
  });
  for (const std::string& failure : failures) {
    CHECK_THAT(failure, Catch::Contains(" opens group world of 20 ranks 0..19 ("));
    CHECK_THAT(failure, Catch::Contains(") over gloo"));
  }
}

namespace {

/// StoreUse holds the maximum number of bytes that rank 0's store held, and its keys at the end,
/// after a number of ranks have met and exchanged texts.
struct StoreUse {
  int64_t most_bytes = 0;
  int64_t keys = 0;
};

/// Runs ranks that meet in a store that rank 0 serves. Returns each rank's error, "" for none.
std::vector<std::string> run_over_store(int world_size, std::chrono::milliseconds heartbeat,
                                        const std::function<void(Rendezvous&)>& body) {
  ListenSocket socket = listen_on("127.0.0.1", 0);
  const int port = socket.port, fd = socket.fd.release();
  std::vector<std::string> failures(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      failures[static_cast<size_t>(rank)] = testing::error_text_of([&] {
        const auto rendezvous = Rendezvous::connect({.rank = rank,
                                                     .world_size = world_size,
                                                     .port = port,
                                                     .listen_fd = rank == 0 ? fd : -1,
                                                     .timeout = 20s,
                                                     .heartbeat = heartbeat,
                                                     .token = "a token of the test"});
        body(*rendezvous);
        rendezvous->shutdown();
      });
    });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

StoreUse store_use_of(int world_size) {
  StoreUse use;
  const auto failures = run_over_store(world_size, 20s, [&](Rendezvous& rendezvous) {
    // The keys are long, so that a rank that waits for many keys has to send all of them.
    const std::string key(200, 'k');
    for (int i = 0; i < 4; ++i) rendezvous.all_gather_text(key, std::string(64, 'x'));
    rendezvous.all_gather_text("once", std::string(64, 'y'));
    if (rendezvous.rank() == 0)
      use = {rendezvous.server()->peak_bytes(), rendezvous.server()->stored_keys()};
  });
  REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
  return use;
}

/// GroupUse holds the contents of rank 0's store after a number of ranks have opened groups over
/// Gloo, and the number of requests meanwhile.
struct GroupUse {
  int64_t keys = 0;
  int64_t bytes = 0;
  int64_t requests = 0;
};

/// Opens a group of all ranks, and one of each half.
GroupUse group_use_of(int world_size) {
  GroupUse use;
  const auto failures = run_over_store(world_size, 20s, [&](Rendezvous& rendezvous) {
    rendezvous.all_gather_text("begin", "");
    const StoreServer* const server = rendezvous.server();
    const int64_t before = server != nullptr ? server->answered_requests() : 0;
    const int half = rendezvous.rank() / (world_size / 2);
    std::vector<int> beside(static_cast<size_t>(world_size / 2));
    std::iota(beside.begin(), beside.end(), half * world_size / 2);
    const auto all = open_world(rendezvous, CommBackend::kGloo);
    const auto some =
        open_communicator(rendezvous, cat("half ", half), beside, {.backend = CommBackend::kGloo});
    rendezvous.all_gather_text("opened", "");
    if (server != nullptr)
      use = {server->stored_keys(), server->stored_bytes(), server->answered_requests() - before};
    rendezvous.all_gather_text("counted", "");
  });
  REQUIRE(failures == std::vector<std::string>(static_cast<size_t>(world_size)));
  return use;
}

/// Returns the error of a rank that exchanges a text; "" if it gets all texts.
std::string exchange_error(Rendezvous& rendezvous, const std::string& key, const std::string& text,
                           WaitPolicy patience = WaitPolicy::kWhileAlive) {
  try {
    rendezvous.all_gather_text(key, text, patience);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

/// Writes a rank's text to the store; the rank itself does nothing more.
void write_text_of(Rendezvous& store, const std::string& key, int rank) {
  store_with_prefix(store, cat("x/", key, "/1"))->set(cat(rank), std::vector<uint8_t>{'='});
}

/// Publishes who is absent, as the first rank of a large group does.
void report_absent(Rendezvous& store, const std::string& key, const std::string& rank) {
  std::string list;
  append_field(list, rank);
  store_with_prefix(store, cat("x/", key, "/1/absent"))
      ->set("0", std::vector<uint8_t>(list.begin(), list.end()));
}

/// Returns the longest key of an exchange with which the store accepts the texts of both ranks
/// under one key, but not in parts; with `own` it rejects parts even of one rank's text.
std::string long_key(bool own) {
  const std::string beside = own ? "x//1/1/part/0" : "x//1/all/0/part/0";
  return std::string(kMaxKeyBytes + 1 - beside.size(), 'k');
}

}  // namespace

TEST_CASE(
    "texts whose sum is more than the store takes in one request reach every rank, and leave "
    "nothing in it") {
  constexpr size_t kEach = 24 << 20;
  REQUIRE(3 * kEach > kMaxRequestBytes);
  int64_t keys = 0;
  const auto failures = run_over_store(3, 1s, [&](Rendezvous& rendezvous) {
    {
      const auto texts = rendezvous.all_gather_text(
          "records", std::string(kEach, static_cast<char>('a' + rendezvous.rank())));
      for (size_t rank = 0; rank < 3; ++rank)
        require(texts.at(rank) == std::string(kEach, static_cast<char>('a' + rank)),
                "the text of each rank");
    }
    // The first exchange removes the texts of all earlier ones.
    rendezvous.all_gather_text("records", "");
    rendezvous.all_gather_text("between", "");
    if (rendezvous.rank() == 0) keys = rendezvous.server()->stored_keys();
  });
  REQUIRE(failures == std::vector<std::string>(3));
  // Heartbeats and the last texts of each exchange are left.
  REQUIRE(keys <= 3 + 3 + 3);
}

TEST_CASE(
    "a first rank whose store refuses the texts of all tells the others, though it lives on") {
  std::vector<std::string> heard(3);
  const auto failures = run_over_store(3, 20ms, [&](Rendezvous& rendezvous) {
    const size_t bytes = rendezvous.rank() == 1 ? (5 << 20) : 1;
    heard[static_cast<size_t>(rendezvous.rank())] =
        exchange_error(rendezvous, long_key(false), std::string(bytes, 'x'));
    const auto next = rendezvous.all_gather_text(long_key(false), cat(rendezvous.rank()));
    require(next == std::vector<std::string>{"0", "1", "2"}, "they go on together");
  });
  REQUIRE(failures == std::vector<std::string>(3));
  for (const std::string& each : heard) {
    CHECK_THAT(each, Catch::StartsWith("rank 0 lost the rendezvous in \"kkk"));
    CHECK_THAT(each, Catch::EndsWith("it is served by rank 0 [the job's store refused a request]"));
  }
}

TEST_CASE("a rank that loses the store of rank 0 blames rank 0, which may report why") {
  std::string heard;
  int blamed = -1;
  // Rank 0 has all texts of "begin" before rank 1 has read them from the store that ends with it.
  std::promise<void> has_begun;
  const auto failures = run_over_store(2, 20ms, [&](Rendezvous& rendezvous) {
    rendezvous.all_gather_text("begin", "");
    if (rendezvous.rank() == 0) {
      has_begun.get_future().wait_for(20s);
      throw Error(ExitCode::kEnvironment, "rank 0 fails");
    }
    has_begun.set_value();
    heard = exchange_error(rendezvous, "next", "x");
    blamed = rendezvous.board().blamed_rank();
  });
  REQUIRE(failures[0] == "rank 0 fails");
  REQUIRE(failures[1] == "");  // prints the error
  CHECK_THAT(heard, Catch::StartsWith("rank 1 lost the rendezvous in \"next\": "));
  CHECK(blamed == 0);
}

TEST_CASE("a rank whose text the store refuses tells the others, though it lives on") {
  std::vector<std::string> heard(3);
  std::vector<int> blamed(3);
  const auto failures = run_over_store(3, 20ms, [&](Rendezvous& rendezvous) {
    const size_t bytes = rendezvous.rank() == 1 ? (5 << 20) : 1;
    heard[static_cast<size_t>(rendezvous.rank())] =
        exchange_error(rendezvous, long_key(true), std::string(bytes, 'x'));
    blamed[static_cast<size_t>(rendezvous.rank())] = rendezvous.board().blamed_rank();
  });
  REQUIRE(failures == std::vector<std::string>(3));
  CHECK(blamed == std::vector<int>(3, -1));
  for (const std::string& each : heard)
    CHECK_THAT(each, Catch::StartsWith("rank 1 lost the rendezvous in \"kkk"));
}

TEST_CASE("ranks that arrive after the first one gave up learn it, and do not wait for it") {
  auto all = Rendezvous::make_in_process(3, 300ms, 20ms);
  const std::string first = exchange_error(*all[0], "program", "x", WaitPolicy::kTimeout);
  CHECK_THAT(first, Catch::StartsWith("rank 0 waited ") &&
                        Catch::EndsWith("s for \"program\": ranks 1, 2 did not arrive in time"));
  for (const size_t rank : {size_t{1}, size_t{2}})
    REQUIRE(exchange_error(*all[rank], "program", "x") == first);
}

TEST_CASE(
    "a group that is complete at the timeout waits a moment for its texts, and then says "
    "what it lacks") {
  auto all = Rendezvous::make_in_process(2, 300ms, 20ms);
  write_text_of(*all[0], "program", 0);
  std::thread first([&] {
    std::this_thread::sleep_for(800ms);
    all[0]->all_gather_text("program", "a");
  });
  const std::string heard = exchange_error(*all[1], "program", "b", WaitPolicy::kTimeout);
  first.join();
  REQUIRE(heard.empty());
  write_text_of(*all[0], "export", 0);
  CHECK_THAT(exchange_error(*all[1], "export", "b", WaitPolicy::kTimeout),
             Catch::EndsWith("s for \"export\": rank 0 has not finished collecting the replies"));
}

TEST_CASE("ranks that have come since a list of absent ranks was made are not taken for absent") {
  constexpr int kWorld = 40;
  auto all = Rendezvous::make_in_process(kWorld, 300ms, 20ms);
  for (int rank = 0; rank < kWorld; ++rank)
    if (rank != 5) write_text_of(*all[0], "program", rank);
  report_absent(*all[0], "program", "7");
  all[0].reset();  // rank 7 is still alive
  CHECK_THAT(exchange_error(*all[5], "program", "x"),
             Catch::EndsWith("s for \"program\": rank 0 has not finished collecting the replies"));
}

TEST_CASE(
    "ranks of a large group that wait for many others ask the store a few things each, also before "
    "they are told for whom") {
  constexpr int kWorld = 72;
  std::atomic<int64_t> before = 0, after = 0;
  std::atomic<const StoreServer*> server = nullptr;
  const auto failures = run_over_store(kWorld, 20s, [&](Rendezvous& rendezvous) {
    if (rendezvous.rank() == 0) server = rendezvous.server();
    rendezvous.all_gather_text("begin", "");
    if (rendezvous.rank() == 0) before = rendezvous.server()->answered_requests();
    // The first rank connects, but does not report who is absent.
    if (rendezvous.rank() == 0) write_text_of(rendezvous, "late", 0);
    if (rendezvous.rank() == 0 || rendezvous.rank() >= kWorld / 2)
      std::this_thread::sleep_for(1500ms);
    if (rendezvous.rank() == kWorld - 1) after = server.load()->answered_requests();
    rendezvous.all_gather_text("late", "");
  });
  REQUIRE(failures == std::vector<std::string>(kWorld));
  INFO(after - before << " requests");
  REQUIRE(after > before);
  REQUIRE(after - before < 20 * kWorld);
}

TEST_CASE("the keys in the store for ranks that meet grow with their number, not with its square") {
  const StoreUse few = store_use_of(12), many = store_use_of(48);
  INFO("12 ranks: " << few.most_bytes << " bytes, " << few.keys << " keys; 48 ranks: "
                    << many.most_bytes << " bytes, " << many.keys << " keys");
  REQUIRE(few.most_bytes > 0);
  REQUIRE(many.most_bytes < 5 * few.most_bytes);
  REQUIRE(many.keys <= 2 * 48 + 8);
}

TEST_CASE(
    "what the store holds and is asked for groups over Gloo grows with the ranks, not with their "
    "square") {
  const GroupUse few = group_use_of(8), many = group_use_of(40);
  INFO("8 ranks: " << few.keys << " keys, " << few.bytes << " bytes, " << few.requests
                   << " requests; 40 ranks: " << many.keys << " keys, " << many.bytes << " bytes, "
                   << many.requests << " requests");
  REQUIRE(few.requests > 0);
  // Heartbeats, texts that will be removed next, and a few keys of each group are left.
  REQUIRE(few.keys <= 2 * 8 + 20);
  REQUIRE(many.keys <= 2 * 40 + 20);
  REQUIRE(many.bytes < 6 * few.bytes);
  // On a busy machine a rank that waits for others asks about them each second.
  REQUIRE(many.requests < 100 * 40);
}

TEST_CASE("an exchange with WaitPolicy::kWhileAlive waits for live ranks, however long they work") {
  auto all = Rendezvous::make_in_process(2, 300ms, 20ms);
  std::vector<std::string> texts;
  std::thread worker([&] {
    std::this_thread::sleep_for(1500ms);
    all[0]->all_gather_text("export", "done", WaitPolicy::kWhileAlive);
  });
  REQUIRE_NOTHROW(texts = all[1]->all_gather_text("export", "waited", WaitPolicy::kWhileAlive));
  worker.join();
  REQUIRE(texts == std::vector<std::string>{"done", "waited"});
}

TEST_CASE("an exchange with WaitPolicy::kWhileAlive gives up a rank that shows no sign of life") {
  auto all = Rendezvous::make_in_process(2, 300ms, 20ms);
  all[0].reset();
  REQUIRE_THROWS_WITH(all[1]->all_gather_text("export", "x", WaitPolicy::kWhileAlive),
                      Catch::StartsWith("rank 1 waited ") &&
                          Catch::Contains("s for \"export\": rank 0 did not arrive in time\n"));
}

TEST_CASE("a posted text is found by any rank at any time") {
  auto all = Rendezvous::make_in_process(2);
  REQUIRE_FALSE(all[1]->find_text("stop").has_value());
  all[0]->post_text("stop", "rank 0: disk full");
  REQUIRE(all[1]->find_text("stop") == "rank 0: disk full");
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
                                                   .world_size = 2,
                                                   .port = port,
                                                   .listen_fd = rank == 0 ? fd : -1,
                                                   .timeout = 20s,
                                                   .token = "a token of the test"});
      if (rank == 0) {
        std::ifstream file("/proc/net/tcp");
        listening.assign(std::istreambuf_iterator<char>(file), {});
      }
      heard[static_cast<size_t>(rank)] =
          rendezvous->all_gather_text("k", cat("from ", rank))[static_cast<size_t>(1 - rank)];
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
    Rendezvous::connect({.rank = 0,
                         .world_size = 2,
                         .port = taken.port,
                         .timeout = 1s,
                         .token = "a token of the test"});
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
    Rendezvous::connect(
        {.rank = 1, .world_size = 2, .port = port, .timeout = 1s, .token = "a token of the test"});
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
    Rendezvous::connect({.rank = 1,
                         .world_size = 2,
                         .address = "no such host",
                         .port = 29500,
                         .timeout = 1s,
                         .token = "a token of the test"});
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
  REQUIRE(rendezvous->all_gather_text("k", "alone") == std::vector<std::string>{"alone"});
  rendezvous->shutdown();
}

#include "comm/job_store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/hmac.h"
#include "comm/listen_socket.h"
#include "comm/rendezvous.h"
#include "comm/rendezvous_file.h"
#include "temporary_folder.h"
#include "waiting.h"

#include <catch2/catch.hpp>

using namespace ftrun;
using namespace std::chrono_literals;

namespace {

const std::string kToken = "the token of the tests' store";

/// Returns a rank of the tests' job in the process that `process` identifies.
StoreMember member_of_rank(uint32_t rank, char process = 'p', uint32_t world_size = 4,
                           uint32_t attempt = 1, const std::string& job = "job 7") {
  return {.rank = rank,
          .world_size = world_size,
          .attempt = attempt,
          .instance = std::string(kInstanceBytes, process),
          .job = job};
}

struct ServedStore {
  explicit ServedStore(StoreServer::Limits limits = {}) {
    ListenSocket socket = listen_on("127.0.0.1", 0);
    port = socket.port;
    server = std::make_shared<StoreServer>(std::move(socket.fd), kToken, member_of_rank(0), limits);
  }
  c10::intrusive_ptr<JobStore> client(const std::string& token = kToken,
                                      const StoreMember& member = member_of_rank(1),
                                      std::chrono::milliseconds limit = 20s) const {
    return c10::make_intrusive<JobStore>(
        [=, this] {
          return std::optional(StoreEndpoint{"127.0.0.1", port, token});
        },
        member, std::chrono::steady_clock::now() + limit, false);
  }
  int port = 0;
  std::shared_ptr<StoreServer> server;
};

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

OwnedFd connect_as_stranger(int port) {
  return connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + 20s);
}

/// Reads `count` bytes; returns false if the connection ends before.
bool read_exactly(int fd, size_t count, std::string& text) {
  text.clear();
  char byte = 0;
  while (text.size() < count) {
    if (::recv(fd, &byte, 1, 0) != 1) return false;
    text += byte;
  }
  return true;
}

/// Acts as an attacker who does not know the token: takes part in the handshake, and continues as
/// if admitted. Returns whether the store answers.
bool answers_attacker(int port, const std::string& proof) {
  const OwnedFd fd = connect_as_stranger(port);
  std::string text;
  if (!read_exactly(fd.get(), kStoreGreeting.size() + kChallengeBytes, text)) return false;
  const std::string own(kChallengeBytes, 'x');
  std::string request(1, static_cast<char>(StoreOperation::kCount)),
      all = own + encode_member(member_of_rank(1)) + proof;
  append_number(request, uint64_t{0});
  append_number(all, static_cast<uint32_t>(request.size()));
  all += request;
  [[maybe_unused]] const ssize_t sent = ::send(fd.get(), all.data(), all.size(), MSG_NOSIGNAL);
  return read_exactly(fd.get(), kWelcomeBytes + sizeof(uint32_t), text);
}

}  // namespace

TEST_CASE("the job's store implements the operations of c10d's stores") {
  const ServedStore served;
  const auto a = served.client(), b = served.client();
  a->set("key", to_bytes("value"));
  REQUIRE(b->get("key") == to_bytes("value"));
  REQUIRE(b->check({"key"}));
  REQUIRE_FALSE(b->check({"key", "other"}));
  REQUIRE(a->add("count", 5) == 5);
  REQUIRE(b->add("count", -7) == -2);
  REQUIRE(b->get("count") == to_bytes("-2"));
  a->append("key", to_bytes("!"));
  REQUIRE(b->get("key") == to_bytes("value!"));
  REQUIRE(a->compareSet("new", to_bytes("x"), to_bytes("y")) == to_bytes("x"));
  REQUIRE(a->compareSet("new", {}, to_bytes("y")) == to_bytes("y"));
  REQUIRE(a->compareSet("new", to_bytes("z"), to_bytes("w")) == to_bytes("y"));
  a->multiSet({"p", "q"}, {to_bytes("1"), {}});
  REQUIRE(b->multiGet({"q", "p"}) == std::vector<std::vector<uint8_t>>{{}, to_bytes("1")});
  REQUIRE(b->getNumKeys() == 5);
  REQUIRE(a->deleteKey("p"));
  REQUIRE_FALSE(a->deleteKey("p"));
  const std::vector<uint8_t> large(5 << 20, 7);
  a->set("large", large);
  REQUIRE(b->get("large") == large);
  REQUIRE(b->clone()->check({"large"}));
  REQUIRE_THROWS_WITH(b->wait({"never"}, 50ms),
                      Catch::Contains("did not have all requested keys (1) in time"));
  std::thread later([&] { a->set("later", to_bytes("now")); });
  b->wait({"key", "later"}, 20s);
  later.join();
  b->setTimeout(30ms);
  REQUIRE_THROWS(b->get("never"));
  REQUIRE_THROWS_WITH(a->set(std::string(kMaxKeyBytes + 1, 'k'), {}), Catch::Contains("refused"));
  REQUIRE_THROWS_WITH(a->add("key", 1), Catch::Contains("refused"));
  REQUIRE(a->check({"key"}));
}

TEST_CASE(
    "a wait for several keys is answered when all exist, and a client that has given up is "
    "not") {
  const ServedStore served;
  const auto sets = served.client();
  std::atomic<bool> done = false;
  std::thread waits([&, waiting = served.client(kToken, member_of_rank(2))] {
    waiting->wait({"a", "b", "c"}, 20s);
    done = true;
  });
  const auto late = served.client(kToken, member_of_rank(3));
  REQUIRE_THROWS(late->wait({"b"}, 1ms));
  for (const char* const key : {"c", "a"}) sets->set(key, to_bytes("there"));
  std::this_thread::sleep_for(20ms);
  REQUIRE(sets->deleteKey("a"));
  sets->set("b", to_bytes("there"));
  std::this_thread::sleep_for(20ms);
  REQUIRE_FALSE(done);
  sets->set("a", to_bytes("there again"));
  waits.join();
  REQUIRE(done);
  REQUIRE(late->get("b") == to_bytes("there"));
}

// FTRUN_SOAK_TOKENS: scripts/soak.sh.
TEST_CASE("thousands of wrong tokens admit nobody to the store") {
  const char* const wanted = std::getenv("FTRUN_SOAK_TOKENS");
  const int tokens = wanted == nullptr ? 2'000 : std::atoi(wanted);
  const ServedStore served;
  std::mt19937 random(20261123);
  int answered = 0;
  for (int i = 0; i < tokens; ++i) {
    std::string proof(kProofBytes, '\0');
    for (char& c : proof) c = static_cast<char>(random());
    answered += answers_attacker(served.port, proof) ? 1 : 0;
  }
  REQUIRE(answered == 0);
  REQUIRE(served.server->admitted_connections() == 0);
  REQUIRE(served.server->refused_connections() == tokens);
  REQUIRE_THROWS_WITH(served.client("another token"),
                      Catch::Contains("does not know this job's token"));
  REQUIRE(served.client()->getNumKeys() == 0);
}

TEST_CASE("an overheard proof does not admit a second connection") {
  const ServedStore served;
  const OwnedFd fd = connect_as_stranger(served.port);
  std::string greeting;
  REQUIRE(read_exactly(fd.get(), kStoreGreeting.size() + kChallengeBytes, greeting));
  const std::string member = encode_member(member_of_rank(1));
  const std::string proof = client_proof(kToken, greeting.substr(kStoreGreeting.size()),
                                         std::string(kChallengeBytes, 'x'), member);
  REQUIRE_FALSE(answers_attacker(served.port, proof));
  // The server's proof, sent back to it, is not valid as a client's proof.
  const auto by_server = [&](const char* a, const char* b) {
    return server_proof(kToken, a, b, StoreAdmission::kAdmitted, member);
  };
  REQUIRE(client_proof(kToken, "a", "b", member) != by_server("a", "b"));
  REQUIRE(client_proof(kToken, "a", "b", member) != by_server("b", "a"));
  // A proof is for one rank of one start. An attacker in between cannot turn it into another
  // rank's, nor a refusal into an admission.
  for (const StoreMember& other :
       {member_of_rank(2), member_of_rank(1, 'q'), member_of_rank(1, 'p', 5),
        member_of_rank(1, 'p', 4, 2), member_of_rank(1, 'p', 4, 1, "job 8")})
    REQUIRE(client_proof(kToken, "a", "b", encode_member(other)) !=
            client_proof(kToken, "a", "b", member));
  REQUIRE(server_proof(kToken, "a", "b", StoreAdmission::kSecondProcess, member) !=
          by_server("a", "b"));
}

TEST_CASE("a client does not trust a store that does not know the token") {
  const ListenSocket socket = listen_on("127.0.0.1", 0);
  std::thread impostor([&] {
    const OwnedFd fd(::accept(socket.fd.get(), nullptr, nullptr));
    std::string greeting(kStoreGreeting);
    greeting.append(kChallengeBytes, 'c');
    [[maybe_unused]] ssize_t done =
        ::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    std::string text;
    if (!read_exactly(fd.get(), kHelloBytes, text)) return;
    const std::string proof(kWelcomeBytes, 'p');
    done = ::send(fd.get(), proof.data(), proof.size(), MSG_NOSIGNAL);
  });
  const auto find = [&] { return std::optional(StoreEndpoint{"127.0.0.1", socket.port, kToken}); };
  REQUIRE_THROWS_WITH(c10::make_intrusive<JobStore>(find, member_of_rank(1),
                                                    std::chrono::steady_clock::now() + 20s, false),
                      "the server there does not know this job's token");
  impostor.join();
}

TEST_CASE("the rest of a malformed answer is not taken for the next answer") {
  const ListenSocket socket = listen_on("127.0.0.1", 0);
  std::thread server([&] {
    const OwnedFd fd(::accept(socket.fd.get(), nullptr, nullptr));
    const auto say = [&](const std::string& bytes) {
      return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    };
    const std::string challenge(kChallengeBytes, 'c'), own = encode_member(member_of_rank(0));
    say(std::string(kStoreGreeting) + challenge);
    std::string heard;
    if (!read_exactly(fd.get(), kHelloBytes, heard)) return;
    const StoreAdmission admission = StoreAdmission::kAdmitted;
    say(static_cast<char>(admission) + own +
        server_proof(kToken, challenge, heard.substr(0, kChallengeBytes), admission, own));
    std::string answers;
    append_number(answers, uint32_t{0});
    append_number(answers, uint32_t{1});
    answers += static_cast<char>(StoreAnswer::kDone);
    if (read_exactly(fd.get(), 1, heard)) say(answers);
    while (read_exactly(fd.get(), 1, heard)) continue;
  });
  const auto find = [&] { return std::optional(StoreEndpoint{"127.0.0.1", socket.port, kToken}); };
  auto client = c10::make_intrusive<JobStore>(find, member_of_rank(1),
                                              std::chrono::steady_clock::now() + 20s, false);
  CHECK_THROWS_WITH(client->check({"key"}), Catch::Contains("a malformed answer"));
  CHECK_THROWS_WITH(client->check({"key"}),
                    Catch::Contains("the connection to the job's store is lost"));
  client.reset();
  server.join();
}

TEST_CASE(
    "garbage, half requests, floods and connections that say nothing keep no rank from the store") {
  const ServedStore served(
      {.max_unauthenticated = 16, .handshake_ms = 60'000, .max_connections = 64});
  std::atomic<bool> over = false;
  std::atomic<int64_t> tries = 0;
  std::vector<std::thread> attackers;
  for (unsigned seed = 0; seed < 3; ++seed)
    attackers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<OwnedFd> silent;
      while (!over) {
        try {
          OwnedFd fd = connect_as_stranger(served.port);
          std::string garbage(random() % 200, '\0');
          for (char& c : garbage) c = static_cast<char>(random());
          if (seed == 0) garbage.clear();
          [[maybe_unused]] const ssize_t done =
              ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
          if (random() % 2 == 0) silent.push_back(std::move(fd));
          if (silent.size() > 100) silent.clear();
        } catch (const std::exception&) {
        }
        ++tries;
        std::this_thread::sleep_for(1ms);  // else they leave the ranks no CPU time and no port
      }
    });
  while (tries < 200) std::this_thread::sleep_for(1ms);
  // A client that was admitted stops in the middle of a request.
  const OwnedFd half = connect_as_stranger(served.port);
  std::vector<c10::intrusive_ptr<JobStore>> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(c10::make_intrusive<JobStore>(
        [&] {
          return std::optional(StoreEndpoint{"127.0.0.1", served.port, kToken});
        },
        member_of_rank(static_cast<uint32_t>(rank)), std::chrono::steady_clock::now() + 60s, true));
  for (int i = 0; i < 200; ++i) {
    ranks[static_cast<size_t>(i % 4)]->set("key", to_bytes(std::to_string(i)));
    REQUIRE(ranks[static_cast<size_t>((i + 1) % 4)]->get("key") == to_bytes(std::to_string(i)));
  }
  over = true;
  for (std::thread& thread : attackers) thread.join();
  REQUIRE(served.server->admitted_connections() >=
          4);  // a rank that was dropped with the strangers connects again
  REQUIRE(served.server->refused_connections() > 100);
}

TEST_CASE(
    "a request that is too long, or none at all, closes the sender's connection and no other") {
  const ServedStore served;
  const auto rank = served.client();
  std::mt19937 random(3);
  for (int i = 0; i < 60; ++i) {
    const OwnedFd fd = connect_as_stranger(served.port);
    std::string text;
    REQUIRE(read_exactly(fd.get(), kStoreGreeting.size() + kChallengeBytes, text));
    const std::string own(kChallengeBytes, 'x');
    const std::string member = encode_member(member_of_rank(2));
    std::string all =
        own + member + client_proof(kToken, text.substr(kStoreGreeting.size()), own, member);
    std::string body(random() % 40, '\0');
    for (char& c : body) c = static_cast<char>(random());
    append_number(all, i % 3 == 0 ? ~uint32_t{0} : static_cast<uint32_t>(body.size()));
    all += body;
    [[maybe_unused]] const ssize_t sent = ::send(fd.get(), all.data(), all.size(), MSG_NOSIGNAL);
    ::shutdown(fd.get(), SHUT_WR);
    while (::recv(fd.get(), text.data(), 1, 0) == 1) continue;
  }
  rank->set("key", to_bytes("value"));
  REQUIRE(rank->get("key") == to_bytes("value"));
}

TEST_CASE(
    "ranks that no supervisor started meet by a file of their own, which is removed when they have "
    "met") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run.rendezvous";
  // An earlier start has left a file behind, and another job has its own file.
  const auto left_over = std::make_unique<RendezvousFile>(
      path, RendezvousFileContent{"slurm 7.0", "127.0.0.1", 1, "an old token, of nobody's"});
  std::vector<std::string> heard(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      if (rank == 0) std::this_thread::sleep_for(100ms);
      const auto rendezvous = Rendezvous::connect({.rank = rank,
                                                   .world_size = 3,
                                                   .timeout = 20s,
                                                   .rendezvous_file = path,
                                                   .job = "slurm 7.0"});
      heard[static_cast<size_t>(rank)] =
          rendezvous->all_gather_text("k", cat(rank))[static_cast<size_t>((rank + 1) % 3)];
      rendezvous->shutdown();
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(heard == std::vector<std::string>{"1", "2", "0"});
  REQUIRE_FALSE(std::filesystem::exists(path));
}

TEST_CASE(
    "a rendezvous file that others could have written, or that is something else, is left alone "
    "and refused") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run.rendezvous";
  const RendezvousFileContent content{"job", "127.0.0.1", 4000, "a token of the test"};
  {
    const RendezvousFile file(path, content);
    struct stat status {};
    REQUIRE(::stat(path.c_str(), &status) == 0);
    REQUIRE((status.st_mode & 0777) == 0600);
    REQUIRE(RendezvousFile::read(path)->token == content.token);
    REQUIRE(RendezvousFile::read(path)->port == 4000);
    REQUIRE(RendezvousFile::read(path)->job == "job");
    REQUIRE(RendezvousFile::read(path)->address == "127.0.0.1");
    REQUIRE_NOTHROW(file.check_not_replaced());
    ::chmod(path.c_str(), 0644);
    REQUIRE_THROWS_WITH(
        RendezvousFile::read(path),
        Catch::Contains("the rendezvous file must be a regular file of this user with mode 0600"));
    ::chmod(path.c_str(), 0600);
  }
  REQUIRE_FALSE(RendezvousFile::read(path).has_value());
  std::ofstream(path) << "a thesis\n";
  ::chmod(path.c_str(), 0600);
  REQUIRE_THROWS_WITH(RendezvousFile(path, content),
                      Catch::Contains("exists, but is not ftrun's rendezvous file"));
  REQUIRE_THROWS_WITH(RendezvousFile::read(path),
                      Catch::Contains("exists, but is not ftrun's rendezvous file"));
  std::string kept;
  std::ifstream text(path);
  std::getline(text, kept);
  REQUIRE(kept == "a thesis");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/passwd", path);
  REQUIRE_THROWS_WITH(
      RendezvousFile::read(path),
      Catch::Contains("the rendezvous file must be a regular file of this user with mode 0600"));
}

TEST_CASE("each rank of a start is one process, with as many connections as it wants") {
  const ServedStore served;
  const auto refused = [&](const StoreMember& member, ExitCode code = ExitCode::kUsage) {
    try {
      served.client(kToken, member);
    } catch (const Error& error) {
      REQUIRE(error.code() == code);
      REQUIRE_FALSE(error.remedy().empty());
      return error.message();
    }
    return std::string("admitted");
  };
  const std::string at = cat(" was refused by rank 0 at 127.0.0.1:", served.port, ": ");
  const auto first = served.client(kToken, member_of_rank(3));
  REQUIRE(served.client(kToken, member_of_rank(3))->getNumKeys() == 0);
  REQUIRE(refused(member_of_rank(3, 'q')) ==
          cat("rank 3", at, "another process is rank 3 of this job already"));
  REQUIRE(first->clone()->getNumKeys() == 0);
  REQUIRE(refused(member_of_rank(2, 'q', 8)) ==
          cat("rank 2", at, "rank 0's job has 4 ranks; this rank was started for 8"));
  REQUIRE(refused(member_of_rank(4)) ==
          cat("rank 4", at, "rank 0's job has 4 ranks; this rank was started for 4"));
  REQUIRE(refused(member_of_rank(2, 'q', 4, 1, "job 8")) ==
          cat("rank 2", at,
              "rank 0 serves another job with the same FTRUN_TOKEN; this rank belongs to job \"job "
              "8\""));
  REQUIRE(refused(member_of_rank(2, 'q', 4, 0)) ==
          cat("rank 2", at, "rank 0 has restart count 1, but this rank has 0"));
  // Rank 0 of a later start may be about to replace this one.
  REQUIRE_THROWS_WITH(served.client(kToken, member_of_rank(2, 'q', 4, 2), 200ms),
                      "rank 0 still has restart count 1, but this rank has 2");
  REQUIRE(refused(member_of_rank(2)) == "admitted");
  REQUIRE(served.server->admitted_connections() == 4);
}

TEST_CASE("only the process that serves the store is rank 0, however early another one connects") {
  const ServedStore served;
  REQUIRE_THROWS_WITH(served.client(kToken, member_of_rank(0, 'q')),
                      Catch::Contains("another process is rank 0 of this job already"));
  REQUIRE(served.client(kToken, member_of_rank(0))->getNumKeys() == 0);
  REQUIRE(served.server->admitted_connections() == 1);
}

TEST_CASE("two jobs with one token end with a message that names a rank that both have") {
  ListenSocket socket = listen_on("127.0.0.1", 0);
  const int port = socket.port, fd = socket.fd.release();
  const auto options = [&](int rank) {
    return RendezvousOptions{.rank = rank,
                             .world_size = 2,
                             .port = port,
                             .listen_fd = rank == 0 ? fd : -1,
                             .timeout = 20s,
                             .token = "a token of two jobs"};
  };
  std::vector<std::unique_ptr<Rendezvous>> met(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back(
        [&, rank] { met[static_cast<size_t>(rank)] = Rendezvous::connect(options(rank)); });
  for (std::thread& thread : threads) thread.join();
  REQUIRE_THROWS_WITH(
      Rendezvous::connect(options(1)),
      cat("rank 1 was refused by rank 0 at 127.0.0.1:", port,
          ": another process is rank 1 of this job already\n  remedy: "
          "start each rank once; jobs that run at the same time need an FTRUN_TOKEN each: "
          "FTRUN_TOKEN=$(openssl rand "
          "-hex 32); if only one rank was restarted, restart all ranks"));
  // The ranks that have met are not disturbed, and may have further connections.
  std::thread other([&] { met[1]->make_connection_for_thread()->all_gather_text("k", "1"); });
  REQUIRE(met[0]->make_connection_for_thread()->all_gather_text("k", "0") ==
          std::vector<std::string>{"0", "1"});
  other.join();
}

TEST_CASE("a rank that may not read the rendezvous file, or reads another job's, says so") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run.rendezvous";
  const RendezvousOptions options{
      .rank = 1, .world_size = 2, .timeout = 300ms, .rendezvous_file = path, .job = "slurm 7.0"};
  {
    const RendezvousFile other(path, {"slurm 8.0", "127.0.0.1", 1, "a token of another job"});
    REQUIRE_THROWS_WITH(
        Rendezvous::connect(options),
        Catch::Contains(path +
                        " belongs to another job (\"slurm 8.0\", this one is \"slurm 7.0\")"));
    // The call fails at once, not only at its timeout.
    RendezvousOptions patient = options;
    patient.timeout = 1h;
    ::chmod(path.c_str(), 0644);
    REQUIRE_THROWS_WITH(
        Rendezvous::connect(patient),
        Catch::Contains("the rendezvous file must be a regular file of this user with mode 0600"));
    ::chmod(path.c_str(), 0600);
  }
}

TEST_CASE(
    "rank 0 leaves another job's rendezvous file alone, and notices when its own is replaced") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run.rendezvous";
  const ServedStore served;
  const RendezvousOptions options{
      .rank = 0, .world_size = 2, .timeout = 20s, .rendezvous_file = path, .job = "slurm 7.0"};
  {
    const RendezvousFile live(path, {"job 7", "127.0.0.1", served.port, kToken});
    REQUIRE_THROWS_WITH(
        Rendezvous::connect(options),
        cat(path,
            ": another job is connecting its ranks through this file (job \"job 7\", at 127.0.0.1:",
            served.port,
            ")\n  remedy: wait until it has begun, end it, or choose another output_dir"));
    REQUIRE_NOTHROW(live.check_not_replaced());
  }
  std::string heard;
  std::jthread rank([&] {
    try {
      Rendezvous::connect(options);
    } catch (const Error& error) {
      heard = error.what();
    }
  });
  testing::await_that([&] { return std::filesystem::exists(path); },
                      "rank 0 has written its rendezvous file");
  const RendezvousFile other(path, {"slurm 8.0", "127.0.0.1", 1, "a token of another job"});
  rank.join();
  REQUIRE(heard == cat(path,
                       ": the rendezvous file was replaced by rank 0 of another job before all "
                       "ranks of this job had connected\n  "
                       "remedy: start one job at a time in an output_dir, or choose another"));
  REQUIRE(RendezvousFile::read(path)->job == "slurm 8.0");
}

TEST_CASE("a value that is stored and being sent is counted once, until the last client has it") {
  const ServedStore served;
  constexpr int64_t kBytes = 8 << 20;
  std::vector<c10::intrusive_ptr<JobStore>> ranks;
  for (uint32_t rank = 1; rank < 4; ++rank)
    ranks.push_back(served.client(kToken, member_of_rank(rank)));
  const auto set_all = [&] {
    for (size_t i = 0; i < ranks.size(); ++i)
      ranks[i]->set(std::to_string(i), std::vector<uint8_t>(kBytes, 7));
  };
  set_all();
  const int64_t stored = served.server->peak_bytes();
  REQUIRE(stored >= 3 * kBytes);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> readers;
    for (size_t i = 0; i < ranks.size(); ++i)
      readers.emplace_back([&, i] { ranks[i]->get(std::to_string(i)); });
    for (std::thread& reader : readers) reader.join();
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i]->deleteKey(std::to_string(i));
    set_all();
  }
  REQUIRE(served.server->peak_bytes() < stored + kBytes / 2);
}

TEST_CASE("the buffer of a long request is not kept for each connection that made one") {
  const ServedStore served;
  constexpr int64_t kBytes = 8 << 20;
  std::vector<c10::intrusive_ptr<JobStore>> connections;
  for (int i = 0; i < 8; ++i) {
    connections.push_back(served.client());
    connections.back()->set("key", std::vector<uint8_t>(kBytes, 7));
  }
  // The server holds at most three copies at once: the value, the new value, and its request.
  REQUIRE(served.server->peak_bytes() <= 3 * kBytes + (1 << 20));
}

TEST_CASE(
    "a store without free file descriptors says so once, and accepts clients when it has some") {
  const ServedStore served;
  char name[] = "/tmp/ftrun_log_XXXXXX";
  const OwnedFd log(::mkstemp(name)), screen(::dup(STDERR_FILENO));
  const OwnedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{.sin_family = AF_INET,
                    .sin_port = htons(static_cast<uint16_t>(served.port)),
                    .sin_addr = {htonl(INADDR_LOOPBACK)},
                    .sin_zero = {}};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{3, before.rlim_max};
  ::dup2(log.get(), STDERR_FILENO);
  ::setrlimit(RLIMIT_NOFILE, &none);
  const int connected =
      ::connect(caller.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place);
  const std::string line =
      "rank 0, which serves the job's store, cannot take another connection for now: Too many open "
      "files; raise ulimit -n";
  const auto is_told = [&] {
    std::string text(4096, '\0');
    return ::pread(log.get(), text.data(), text.size(), 0) > 0 &&
           text.find(line) != std::string::npos;
  };
  for (int tries = 0; !is_told() && tries < 60'000; ++tries) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(300ms);  // time to report it again
  ::setrlimit(RLIMIT_NOFILE, &before);
  std::string greeting;
  const bool greeted =
      read_exactly(caller.get(), kStoreGreeting.size() + kChallengeBytes, greeting);
  ::dup2(screen.get(), STDERR_FILENO);
  std::ifstream file(name);
  const std::string logged(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(name);
  REQUIRE(connected == 0);
  REQUIRE(greeted);
  CHECK_THAT(logged, Catch::Contains(line));
  REQUIRE(logged.find(line) == logged.rfind(line));
}

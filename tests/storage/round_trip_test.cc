#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "fault_storage.h"
#include "requirements.h"
#include "storage/swap_file.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::AlignedBytes;
using testing::FaultStorage;
using testing::TemporaryFolder;

/// IoMethod says how blocks are moved: by io_uring or threads, with or without direct I/O.
struct IoMethod {
  int ring_errno;
  int direct_status;
};
constexpr IoMethod kThreads{EPERM, -EINVAL};  // which every machine supports

std::string refusal_of_direct_io() {
  const TemporaryFolder folder;
  start_log({.level = LogLevel::kError});
  const SwapFile file({.folder = folder.path(), .name = "probe", .bytes = 4096});
  start_log({});
  return file.is_direct() ? "" : "the file system of " + folder.path() + " refuses direct I/O";
}

std::string refusal_of_both() {
  const std::string ring = testing::ring_refusal();
  return ring.empty() ? refusal_of_direct_io() : ring;
}

const testing::Requirement kRing("io_uring", testing::ring_refusal);
const testing::Requirement kDirect("direct_io", refusal_of_direct_io);
const testing::Requirement kBoth("io_uring_direct", refusal_of_both);

/// Returns the method that the CTest entry of the tests tagged "[io_methods]" tests.
IoMethod method_under_test() {
  const std::string name = testing::requirement_of_entry();
  return {name.starts_with("io_uring") ? 0 : EPERM, name.find("direct") != name.npos ? 0 : -EINVAL};
}

struct Fixture {
  explicit Fixture(const IoMethod& method, AioOptions aio = {}, int64_t bytes = 8 << 20) {
    start_log({.level = LogLevel::kError});  // other tests check its notices
    storage.ring_errno = method.ring_errno;
    storage.direct_status = method.direct_status;
    file = std::make_unique<SwapFile>(
        SwapOptions{.folder = folder.path(), .name = "test", .bytes = bytes, .aio = aio}, storage);
    start_log({});
    REQUIRE(file->uses_ring() == (method.ring_errno == 0));
    REQUIRE(file->is_direct() == (method.direct_status == 0));
  }
  TemporaryFolder folder;
  FaultStorage storage;
  std::unique_ptr<SwapFile> file;
};

/// Writes ranges of random sizes, many at a time, and reads them back in a different order.
void random_round_trip(SwapFile& file, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<AlignedBytes>> data;
  std::vector<int64_t> offsets;
  for (int64_t offset = 0;;) {
    const auto bytes = static_cast<int64_t>(random() % 300'000);
    if (offset + round_up_to_sector(bytes) > file.bytes()) break;
    data.push_back(std::make_unique<AlignedBytes>(bytes));
    data.back()->fill(seed + data.size());
    offsets.push_back(offset);
    offset += round_up_to_sector(bytes);
  }
  REQUIRE(data.size() > 20);
  std::vector<size_t> order(data.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<SwapFile::Ticket> tickets(data.size());
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order) tickets[i] = file.write(data[i]->data(), data[i]->size(), offsets[i]);
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order) file.wait(tickets[i]);

  std::vector<std::unique_ptr<AlignedBytes>> back;
  for (const auto& one : data) back.push_back(std::make_unique<AlignedBytes>(one->size()));
  for (size_t i : order) tickets[i] = file.read(back[i]->data(), back[i]->size(), offsets[i]);
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i : order) {
    file.wait(tickets[i]);
    REQUIRE(back[i]->equals(*data[i]));
    REQUIRE(back[i]->end_is_unchanged());
  }
}

TEST_CASE("ranges of any size are read back as written, with many in flight", "[io_methods]") {
  const AioOptions aio = GENERATE(AioOptions{}, AioOptions{.block_size = 4096, .queue_depth = 3},
                                  AioOptions{.block_size = 65536, .queue_depth = 1},
                                  AioOptions{.block_size = 32768, .intra_op_parallelism = 4},
                                  AioOptions{.block_size = 16384, .single_submit = true},
                                  AioOptions{.block_size = 16384, .overlap_events = false});
  CAPTURE(aio.block_size, aio.queue_depth, aio.single_submit, aio.overlap_events);
  Fixture fixture(method_under_test(), aio);
  for (uint64_t seed = 1; seed <= 2; ++seed) random_round_trip(*fixture.file, seed);
}

TEST_CASE("a partly moved block is continued from its last whole sector", "[io_methods]") {
  Fixture fixture(method_under_test(), {.block_size = 65536, .queue_depth = 5});
  std::mt19937_64 random(7);
  int shortened = 0, again = 0;
  fixture.storage.fault = [&](const IoBlock& block) -> int64_t {
    const auto dice = random() % 8;
    if (dice == 0) return ++again, -EINTR;
    if (dice == 1) return ++again, -EAGAIN;
    if (dice > 4) return 0;
    return ++shortened, static_cast<int64_t>(1 + random() % static_cast<uint64_t>(block.bytes));
  };
  random_round_trip(*fixture.file, 3);
  REQUIRE(shortened > 50);
  REQUIRE(again > 50);
}

TEST_CASE("a request is cut into blocks, with a final partial sector in a block of its own") {
  Fixture fixture(kThreads, {.block_size = 8192});
  AlignedBytes data(20'000);
  fixture.file->wait(fixture.file->write(data.data(), data.size(), 4096));
  REQUIRE(fixture.storage.calls ==
          std::vector<std::string>{"write 8192@4096", "write 8192@12288", "write 4096@20480"});
}

TEST_CASE("no more blocks are in flight than the options allow") {
  const AioOptions aio{.block_size = 4096, .queue_depth = 2, .intra_op_parallelism = 3};
  Fixture fixture(kThreads, aio);
  AlignedBytes data(100 * 4096);
  const auto ticket = fixture.file->write(data.data(), data.size(), 0);
  REQUIRE(fixture.storage.calls.size() == 6);
  fixture.file->wait(ticket);
  REQUIRE(fixture.storage.calls.size() == 100);
}

TEST_CASE("without overlap_events the next blocks wait for all blocks before them") {
  Fixture fixture(kThreads, {.block_size = 4096, .queue_depth = 4, .overlap_events = false});
  AlignedBytes data(12 * 4096);
  fixture.file->wait(fixture.file->write(data.data(), data.size(), 0));
  REQUIRE(fixture.storage.batches == std::vector<size_t>{4, 4, 4});
}

TEST_CASE("unwritten bytes are read as zeros, as is the rest of the last sector", "[io_methods]") {
  Fixture fixture(method_under_test());
  AlignedBytes written(4097), sectors(3 * 4096), zeros(3 * 4096);
  std::fill_n(zeros.data(), zeros.size(), '\0');
  sectors.fill(1);
  fixture.file->wait(fixture.file->read(sectors.data(), sectors.size(), 0));
  REQUIRE(sectors.equals(zeros));
  written.fill(2);
  fixture.file->wait(fixture.file->write(written.data(), written.size(), 0));
  fixture.file->wait(fixture.file->read(sectors.data(), sectors.size(), 0));
  std::copy_n(written.data(), 4097, zeros.data());
  REQUIRE(sectors.equals(zeros));
}

TEST_CASE("a swap file counts its bytes and the time of waits") {
  Fixture fixture(kThreads);
  AlignedBytes data(5000);
  fixture.storage.stall_seconds = 2.5;
  fixture.file->wait(fixture.file->write(data.data(), 5000, 0));
  fixture.file->wait(fixture.file->read(data.data(), 4999, 0));
  REQUIRE(fixture.file->counters().bytes_written == 5000);
  REQUIRE(fixture.file->counters().bytes_read == 4999);
  REQUIRE(fixture.file->counters().wait_seconds == 2.5);
}

TEST_CASE("a swap file may be destroyed while requests run, and its memory after that",
          "[io_methods]") {
  for (int i = 0; i < 20; ++i) {
    Fixture fixture(method_under_test(), {.block_size = 65536});
    AlignedBytes data(4 << 20);
    fixture.file->read(data.data(), data.size(), 0);
    fixture.file.reset();
    data.fill(1);
    AlignedBytes same(4 << 20);
    same.fill(1);
    REQUIRE(data.equals(same));
  }
}

TEST_CASE("invalid requests are reported as bugs that name the violated rule") {
  Fixture fixture(kThreads);
  AlignedBytes data(8192);
  SwapFile& file = *fixture.file;
  using Catch::Contains;
  REQUIRE_THROWS_WITH(file.read(data.data() + 8, 8, 0),
                      Contains("memory of a swap request must lie on a multiple of 4096"));
  REQUIRE_THROWS_WITH(file.read(data.data(), 8, 512),
                      Contains("a swap request must begin on a multiple of 4096 in the file"));
  REQUIRE_THROWS_WITH(file.read(data.data(), 4097, file.bytes() - 4096),
                      Contains("a swap request stays inside the reserved file"));
  const auto ticket = file.write(data.data(), 4096, 0);
  file.wait(ticket);
  REQUIRE_THROWS_WITH(file.wait(ticket),
                      Contains("a swap ticket is known and was not waited for yet"));
  const auto other = file.write(data.data(), 4096, 0);  // reuses the first ticket's slot
  REQUIRE_THROWS_WITH(file.wait(ticket),
                      Contains("a swap ticket is known and was not waited for yet"));
  file.wait(other);
}

}  // namespace
}  // namespace ftrun

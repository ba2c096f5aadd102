#include "graph/storage.h"

#include <algorithm>
#include <random>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

int64_t align_up(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

bool is_alive_at(const StorageRequest& r, int64_t at) {
  return r.bytes > 0 && r.first <= at && at <= r.last;
}

/// Returns whether no two requests that are alive at time `at` share a byte.
bool are_apart(const std::vector<StorageRequest>& requests, const StorageLayout& layout,
               int64_t at) {
  std::vector<char> taken(static_cast<size_t>(layout.bytes), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!is_alive_at(requests[i], at)) continue;
    for (int64_t b = 0; b < requests[i].bytes; ++b)
      if (++taken.at(static_cast<size_t>(layout.offset[i] + b)) > 1) return false;
  }
  return true;
}

std::vector<StorageRequest> random_requests(std::mt19937_64& random) {
  std::vector<StorageRequest> requests(random() % 40);
  for (StorageRequest& r : requests) {
    r.bytes = static_cast<int64_t>(random() % 7 == 0 ? 0 : random() % 1000);
    r.first = static_cast<int64_t>(random() % 50);
    r.last = r.first + static_cast<int64_t>(random() % 12) - 1;  // some end before they begin
  }
  return requests;
}

TEST_CASE("no two requests that live at the same time share a byte, and all are aligned") {
  std::mt19937_64 random(21);
  for (int round = 0; round < 500; ++round) {
    const auto requests = random_requests(random);
    const int64_t alignment = int64_t{1} << (random() % 8);
    const StorageLayout layout = pack_storage(requests, alignment);
    REQUIRE(layout.offset.size() == requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const bool placed = requests[i].bytes > 0 && requests[i].first <= requests[i].last;
      REQUIRE((layout.offset[i] >= 0) == placed);
      if (!placed) continue;
      REQUIRE(layout.offset[i] % alignment == 0);
      REQUIRE(layout.offset[i] + requests[i].bytes <= layout.bytes);
    }
    for (int64_t at = 0; at < 64; ++at) REQUIRE(are_apart(requests, layout, at));
  }
}

TEST_CASE(
    "the arena is at least as large as the peak and at most as large as everything together") {
  std::mt19937_64 random(22);
  for (int round = 0; round < 300; ++round) {
    const auto requests = random_requests(random);
    const int64_t bytes = pack_storage(requests, 64).bytes;
    int64_t fullest = 0;
    for (int64_t at = 0; at < 64; ++at) {
      int64_t live = 0;
      for (const StorageRequest& r : requests) live += is_alive_at(r, at) ? r.bytes : 0;
      fullest = std::max(fullest, live);
    }
    int64_t all = 0;
    for (const StorageRequest& r : requests) all += r.first <= r.last ? align_up(r.bytes, 64) : 0;
    REQUIRE(bytes >= fullest);
    REQUIRE(bytes <= all);
    REQUIRE(bytes % 64 == 0);
  }
}

TEST_CASE("most arenas are as small as the peak") {
  std::mt19937_64 random(23);
  int smallest = 0;
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    const auto requests = random_requests(random);
    int64_t fullest = 0;
    for (int64_t at = 0; at < 64; ++at) {
      int64_t live = 0;
      for (const StorageRequest& r : requests)
        live += is_alive_at(r, at) ? align_up(r.bytes, 64) : 0;
      fullest = std::max(fullest, live);
    }
    smallest += pack_storage(requests, 64).bytes == fullest ? 1 : 0;
  }
  CHECK(smallest >= kRounds * 9 / 10);
}

/// Returns the requests of a step of `micro_batches`: for each of `layers`, memory from forward to
/// backward, and scratch for both.
std::vector<StorageRequest> step_requests(int64_t layers, int64_t micro_batches) {
  std::vector<StorageRequest> requests;
  for (int64_t m = 0; m < micro_batches; ++m)
    for (int64_t l = 0; l < layers; ++l) {
      const int64_t forward = 2 * layers * m + l;
      const int64_t backward = 2 * layers * (m + 1) - 1 - l;
      requests.push_back({4096 + 64 * l, forward, backward});
      requests.push_back({640, forward, backward});
      requests.push_back({10'000, forward, forward});
      requests.push_back({20'000, backward, backward});
      // The reduction ends during the next layer or micro-batch.
      requests.push_back({7'000, backward, backward + 2});
    }
  return requests;
}

TEST_CASE(
    "the work to place thousands of requests grows with those alive at one time, not with all of "
    "them",
    "[long]") {
  const StorageLayout once = pack_storage(step_requests(80, 1), 64);
  for (const int64_t micro_batches : {4, 64, 256}) {
    const std::vector<StorageRequest> requests = step_requests(80, micro_batches);
    const StorageLayout layout = pack_storage(requests, 64);
    INFO(micro_batches << " micro-batches, " << requests.size() << " requests, " << layout.examined
                       << " looks");
    CHECK(layout.examined < micro_batches * once.examined * 5 / 4);
    CHECK(layout.bytes == once.bytes);
  }
}

TEST_CASE("if no order reaches the bound, few orders are tried for very many requests", "[long]") {
  std::mt19937_64 random(24);
  std::vector<StorageRequest> requests(40'000);
  for (StorageRequest& r : requests) {
    r.bytes = static_cast<int64_t>(1 + random() % 100'000);
    r.first = static_cast<int64_t>(random() % 20'000);
    r.last = r.first + static_cast<int64_t>(random() % 200);
  }
  CHECK(pack_storage(requests, 64).examined < 120'000'000);
}

TEST_CASE("storage requests without bytes or without lifetime get no offset") {
  const StorageRequest requests[] = {{0, 0, 5}, {64, 3, 2}, {}, {64, 1, 1}};
  const StorageLayout layout = pack_storage(requests, 64);
  CHECK(layout.offset == std::vector<int64_t>{-1, -1, -1, 0});
  CHECK(layout.bytes == 64);
  CHECK(pack_storage({}, 64).bytes == 0);
}

TEST_CASE(
    "requests that follow one another need the largest one's size, concurrent ones the sum of "
    "their sizes") {
  const StorageRequest apart[] = {{100, 0, 1}, {300, 2, 3}, {200, 4, 9}};
  CHECK(pack_storage(apart, 64).bytes == 320);
  const StorageRequest together[] = {{100, 0, 2}, {300, 1, 3}, {200, 2, 9}};
  CHECK(pack_storage(together, 64).bytes == 704);  // 100 on 128, 300 on 320, 200 on 256
}

TEST_CASE("lifetimes include both ends: requests that share one moment do not overlap in memory") {
  const StorageRequest meet[] = {{64, 0, 3}, {64, 3, 5}};
  CHECK(pack_storage(meet, 64).bytes == 128);
}

TEST_CASE("a hole between two live requests is used") {
  const StorageRequest requests[] = {{192, 0, 9}, {128, 0, 4}, {64, 0, 9}, {128, 5, 9}};
  CHECK(pack_storage(requests, 64).bytes == 384);
}

int64_t peak_of(const std::vector<StorageRequest>& requests, const std::vector<int64_t>& moved) {
  int64_t fullest = 0;
  for (int64_t at = -1; at < 64; ++at) {
    int64_t live = 0;
    for (size_t i = 0; i < requests.size(); ++i)
      live += moved[i] < 0 && is_alive_at(requests[i], at) ? align_up(requests[i].bytes, 64) : 0;
    fullest = std::max(fullest, live);
  }
  return fullest;
}

TEST_CASE(
    "requests moved to gaps of another arena overlap nothing there, and make their own arena "
    "smaller") {
  std::mt19937_64 random(25);
  int filled = 0, reached_enough = 0;
  for (int round = 0; round < 500; ++round) {
    const std::vector<StorageRequest> hosts = random_requests(random),
                                      guests = random_requests(random);
    const StorageLayout layout = pack_storage(hosts, 64);
    const int64_t room = layout.bytes + (round % 3 == 0 ? 700 : 0);
    const std::vector<int64_t> none_moved(guests.size(), -1);
    const int64_t whole = peak_of(guests, none_moved);
    const int64_t enough = round % 2 == 0 ? 0 : whole * 9 / 10;
    const std::vector<int64_t> gap = fill_gaps(guests, {hosts, layout.offset, room}, 64, enough);
    REQUIRE(gap.size() == guests.size());
    if (gap == none_moved) continue;
    ++filled;
    REQUIRE(peak_of(guests, gap) < whole);
    // The last request that was moved was needed.
    if (peak_of(guests, gap) <= enough) ++reached_enough;
    std::vector<StorageRequest> all = hosts;
    StorageLayout both{layout.offset, room, 0};
    for (size_t i = 0; i < guests.size(); ++i) {
      if (gap[i] < 0) continue;
      REQUIRE(gap[i] % 64 == 0);
      REQUIRE(gap[i] + guests[i].bytes <= room);
      all.push_back(guests[i]);
      both.offset.push_back(gap[i]);
    }
    for (int64_t at = 0; at < 64; ++at) REQUIRE(are_apart(all, both, at));
  }
  CHECK(filled > 200);
  CHECK(reached_enough > 50);
}

TEST_CASE("the largest request at the peak is moved to a gap that lasts for its lifetime") {
  // One host is alive all the time, another one in the second half.
  const std::vector<StorageRequest> hosts{{640, 0, 19}, {640, 10, 19}};
  const StorageLayout layout = pack_storage(hosts, 64);
  REQUIRE(layout.bytes == 1280);
  const auto gaps = [&](const std::vector<StorageRequest>& guests, int64_t enough = 0) {
    return fill_gaps(guests, {hosts, layout.offset, layout.bytes}, 64, enough);
  };
  using Places = std::vector<int64_t>;
  const int64_t free = layout.offset[0] == 0 ? 640 : 0;
  // The second request is too large, and the third lives too long.
  CHECK(gaps({{512, 5, 9}, {704, 5, 9}, {576, 5, 10}, {64, 5, 9}}) ==
        Places{free, -1, -1, free + 512});
  CHECK(gaps({{512, 5, 9}, {64, 5, 9}}, 64) == Places{free, -1});
  CHECK(gaps({{512, 5, 9}, {64, 5, 9}}, 576) == Places{-1, -1});
  // Nothing is gained if another time has the same peak.
  CHECK(gaps({{512, 5, 9}, {512, 10, 12}}) == Places{-1, -1});
  CHECK(gaps({}) == Places{});
}

}  // namespace
}  // namespace ftrun

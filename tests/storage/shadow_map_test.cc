#include "storage/shadow_map.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

constexpr int64_t kSector = 4096;

TEST_CASE("without a second copy, all bytes are in the first region") {
  ShadowMap map(4 * kSector, 10 * kSector, -1);
  REQUIRE(map.write_offset(kSector, kSector) == 11 * kSector);
  map.begin_snapshot();
  REQUIRE(map.write_offset(kSector, kSector) == 11 * kSector);
  REQUIRE(map.read_offset(kSector, 2 * kSector) == 11 * kSector);
}

TEST_CASE("saved bytes are not overwritten, and reads return the last bytes written") {
  ShadowMap map(4 * kSector, 0, 100 * kSector);
  map.write_offset(0, 4 * kSector);
  map.begin_snapshot();
  REQUIRE(map.read_offset(0, 2 * kSector) == 0);
  REQUIRE(map.write_offset(0, 2 * kSector) == 100 * kSector);
  REQUIRE(map.write_offset(0, 2 * kSector) == 100 * kSector);
  REQUIRE(map.read_offset(kSector, kSector) == 101 * kSector);
  REQUIRE(map.read_offset(2 * kSector, 2 * kSector) == 2 * kSector);
  REQUIRE(map.snapshot_offset(0, 4 * kSector) == 0);
  map.end_snapshot();
  REQUIRE(map.write_offset(0, kSector) == 100 * kSector);
  REQUIRE(map.write_offset(2 * kSector, kSector) == 2 * kSector);
  map.begin_snapshot();
  REQUIRE(map.snapshot_offset(0, 2 * kSector) == 100 * kSector);
  REQUIRE(map.write_offset(0, 2 * kSector) == 0);
}

TEST_CASE("a range in both regions cannot be read at once, except sectors never written") {
  ShadowMap map(4 * kSector, 0, 100 * kSector);
  map.write_offset(0, 2 * kSector);
  map.begin_snapshot();
  map.write_offset(0, kSector);
  REQUIRE_THROWS_AS(map.read_offset(0, 2 * kSector), Error);
  map.write_offset(kSector, kSector);
  REQUIRE(map.read_offset(0, 4 * kSector) == 100 * kSector);
}

// The test's disk is a map of sectors; the reference is a copy made at begin_snapshot().
TEST_CASE("random writes, reads and checkpoints give the results of a disk with full copies") {
  constexpr int64_t kStretch = 3;  // sectors per write
  constexpr int64_t kStretches = 7;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    ShadowMap map(kStretches * kStretch * kSector, 5 * kSector, 1000 * kSector);
    std::map<int64_t, int> disk;
    std::vector<int> now(kStretches, 0);
    std::vector<int> kept;
    bool has_snapshot = false;
    for (int value = 1; value < 120; ++value) {
      const auto stretch = static_cast<int64_t>(random() % kStretches);
      const int64_t offset = stretch * kStretch * kSector;
      const auto read = [&](int64_t place) {
        const int first = disk[place];
        for (int64_t s = 1; s < kStretch; ++s) REQUIRE(disk[place + s * kSector] == first);
        return first;
      };
      switch (random() % 5) {
        case 0:
          has_snapshot = !has_snapshot;
          if (has_snapshot) {
            map.begin_snapshot();
            kept = now;
          } else {
            map.end_snapshot();
          }
          break;
        case 1:
        case 2: {
          const int64_t place = map.write_offset(offset, kStretch * kSector);
          for (int64_t s = 0; s < kStretch; ++s) disk[place + s * kSector] = value;
          now[static_cast<size_t>(stretch)] = value;
          break;
        }
        default:
          break;
      }
      REQUIRE(read(map.read_offset(offset, kStretch * kSector)) ==
              now[static_cast<size_t>(stretch)]);
      if (has_snapshot)
        REQUIRE(read(map.snapshot_offset(offset, kStretch * kSector)) ==
                kept[static_cast<size_t>(stretch)]);
    }
  }
}

}  // namespace
}  // namespace ftrun

#include "base/run_in_parallel.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("concurrent work is done once for each number") {
  for (const size_t count : std::vector<size_t>{0, 1, 2, 1000}) {
    std::vector<int> done(count, 0);
    run_in_parallel(count, [&](size_t i) { ++done[i]; });
    CHECK(done == std::vector<int>(count, 1));
  }
}

TEST_CASE("concurrent work throws the error with the lowest number, after all work is done") {
  std::vector<int> done(100, 0);
  const auto work = [&](size_t i) {
    done[i] = 1;
    if (i % 30 == 7) throw std::runtime_error(std::to_string(i));
  };
  CHECK_THROWS_WITH(run_in_parallel(done.size(), work), "7");
  CHECK(done == std::vector<int>(100, 1));
}

}  // namespace
}  // namespace ftrun

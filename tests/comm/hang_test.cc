// These tests inject random hangs; the rank for which all wait must be named. FTRUN_HANG_CASES and
// FTRUN_HANG_SEED set the number and the seed; scripts/soak_hangs.py runs 200.
#include <cstdlib>
#include <random>

#include "hangs.h"

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace

TEST_CASE("the culprit of each injected hang is named, with what it does") {
  const int64_t cases = number_from("FTRUN_HANG_CASES", 12);
  std::mt19937 random(static_cast<unsigned>(number_from("FTRUN_HANG_SEED", 20261123)));
  std::vector<HangCase> hangs;
  // The first cases have each kind once.
  for (int64_t i = 0; i < cases; ++i) {
    const auto drawn = static_cast<Hang>(random() % kHangs);
    const CommBackend backend = random() % 2 == 0 ? CommBackend::kSharedMemory : CommBackend::kGloo;
    hangs.push_back(draw_hang(random, i < kHangs ? static_cast<Hang>(i) : drawn, backend));
  }
  const std::vector<std::string> wrong = find_naming_errors(hangs, std::make_unique<HangDevice>);
  CAPTURE(hangs.size() - wrong.size(), hangs.size(), wrong);
  REQUIRE(100 * wrong.size() <= hangs.size());
}

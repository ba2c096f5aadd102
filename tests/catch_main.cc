#include <iostream>

#include "catch_runner.h"
#include "requirements.h"
#include "waiting.h"

#include <catch2/catch.hpp>

// An error that a test did not expect.
CATCH_TRANSLATE_EXCEPTION(const ftrun::Error& error) {
  return ftrun::testing::failure_message(error);
}

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of the CTest entries
  if (const std::string why = ftrun::testing::unmet_requirement(); !why.empty()) {
    std::cout << "skipped: " << why << std::endl;
    return kSkipped;
  }
  return ftrun::testing::run_test_cases(argc, argv);
}

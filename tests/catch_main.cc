#include <iostream>

#include "needs.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of the CTest entries
  if (const std::string why = ftrun::testing::missing(); !why.empty()) {
    std::cout << "skipped: " << why << std::endl;
    return kSkipped;
  }
  return Catch::Session().run(argc, argv);
}

#include "catch_runner.h"

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

namespace ftrun::testing {

int run_test_cases(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}

}  // namespace ftrun::testing

#include <iostream>

#include "base/error.h"
#include "catch_runner.h"
#include "gpu_under_test.h"

/// What CTest counts as skipped.
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  try {
    const auto gpu = ftrun::fixtures::open_gpu_under_test();
    std::cout << "on " << gpu->info().name << "\n";
  } catch (const ftrun::Error& error) {
    std::cout << "skipped: " << error.message() << "\n";
    return kSkipped;
  }
  return ftrun::testing::run_test_cases(argc, argv);
}

#include <iostream>

#include "base/error.h"
#include "catch_runner.h"
#include "gpu_under_test.h"
#include "without_gpu.h"

int main(int argc, char** argv) {
  try {
    const auto gpu = ftrun::testing::open_gpu_under_test();
    std::cout << "on " << gpu->info().name << "\n";
  } catch (const ftrun::Error& error) {
    return ftrun::testing::exit_code_without_gpu(error);
  }
  return ftrun::testing::run_test_cases(argc, argv);
}

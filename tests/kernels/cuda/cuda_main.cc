#include <iostream>
#include <memory>

#include "base/error.h"
#include "catch_runner.h"
#include "gpu_operation_cases.h"
#include "without_gpu.h"

int main(int argc, char** argv) {
  std::unique_ptr<ftrun::DeviceKernels> kernels;
  try {
    kernels = ftrun::open_cuda_kernels(0);
  } catch (const ftrun::Error& error) {
    return ftrun::testing::exit_code_without_gpu(error);
  }
  std::cout << "on " << kernels->info().name << "\n";
  ftrun::testing::set_gpu(kernels.get());
  return ftrun::testing::run_test_cases(argc, argv);
}

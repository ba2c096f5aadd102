#include "kernels/cuda/by_element.cuh"
#include "kernels/cuda/ops.h"
#include "ops/add/add.h"

namespace ftrun::cuda {

namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

void run_add(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, Sum{});
}

}  // namespace ftrun::cuda

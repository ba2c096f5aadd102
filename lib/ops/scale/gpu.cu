#include "kernels/cuda/by_element.cuh"
#include "kernels/cuda/ops.h"
#include "ops/scale/scale.h"

namespace ftrun::cuda {

namespace {

struct Scaled {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

}  // namespace

void run_scale(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, Scaled{static_cast<float>(op.attrs<ScaleAttrs>().factor)});
}

}  // namespace ftrun::cuda

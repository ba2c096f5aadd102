#include "kernels/cuda/by_element.cuh"
#include "kernels/cuda/ops.h"
#include "ops/softcap/softcap.h"

namespace ftrun::cuda {

namespace {

struct Capped {
  float bound;
  __device__ float operator()(float x) const { return bound * tanhf(x / bound); }
};

/// CapGradient computes the gradient of the cap's operand from dy and y.
struct CapGradient {
  float bound;
  __device__ float operator()(float dy, float y) const {
    return dy * (1.0F - y / bound * (y / bound));
  }
};

float bound_of(const Operation& op) {
  return static_cast<float>(op.attrs<SoftcapAttrs>().bound);
}

}  // namespace

void run_softcap(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, Capped{bound_of(op)});
}

void run_softcap_dgrad(const Operation& op, const KernelLibraries& /*libraries*/) {
  run_by_element(op, CapGradient{bound_of(op)});
}

}  // namespace ftrun::cuda

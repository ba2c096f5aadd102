#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "kernels/kernels.h"

namespace ftrun {

namespace {

constexpr int64_t kFlatGrain = 1 << 16;

AdamStep adam_step(const AdamOptions& options, const StepScalars& s) {
  const double decay = options.weight_decay;
  AdamStep step;
  step.gradient_scale = s.gradient_scale;
  step.beta1 = static_cast<float>(s.beta1);
  step.one_minus_beta1 = static_cast<float>(1.0 - s.beta1);
  step.beta2 = static_cast<float>(s.beta2);
  step.one_minus_beta2 = static_cast<float>(1.0 - s.beta2);
  step.step_size = static_cast<float>(static_cast<double>(s.learning_rate) / s.bias_correction1);
  step.inverse_sqrt_correction2 =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.bias_correction2)));
  step.epsilon = options.epsilon;
  step.keep = options.decoupled ? static_cast<float>(1.0 - s.learning_rate * decay) : 1.0F;
  step.l2 = options.decoupled ? 0.0F : options.weight_decay;
  return step;
}

}  // namespace

double sum_of_squares(const float* g, int64_t count) {
  // Kept from call to call: steps do not allocate.
  thread_local std::vector<double> sums;
  const int64_t blocks = (count + kNormBlock - 1) / kNormBlock;
  sums.resize(static_cast<size_t>(blocks));
  double* const sum = sums.data();
  const auto& vec = vector_kernels<float>();
  parallel_ranges(blocks, kFlatGrain / kNormBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNormBlock;
      sum[block] = vec.sum_of_squares(g + first, std::min(kNormBlock, count - first));
    }
  });
  double total = 0.0;
  for (int64_t block = 0; block < blocks; ++block) total += sum[block];
  return total;
}

void adam_update(float* p, const float* g, float* m, float* v, int64_t count,
                 const AdamOptions& options, const StepScalars& scalars) {
  const AdamStep step = adam_step(options, scalars);
  const auto& vec = vector_kernels<float>();
  parallel_ranges(count, kFlatGrain, [&](int64_t begin, int64_t end) {
    vec.adam(p + begin, g + begin, m + begin, v + begin, end - begin, step);
  });
}

void sgd_update(float* p, const float* g, float* momentum_buffer, int64_t count,
                const SgdOptions& options, const StepScalars& scalars) {
  require(momentum_buffer != nullptr || options.momentum == 0.0F, "momentum needs its buffer");
  const SgdStep step{.gradient_scale = scalars.gradient_scale,
                     .learning_rate = scalars.learning_rate,
                     .momentum = options.momentum,
                     .one_minus_dampening = 1.0F - options.dampening,
                     .l2 = options.weight_decay,
                     .nesterov = options.nesterov,
                     .first_step = options.first_step};
  float* const buffer = options.momentum == 0.0F ? nullptr : momentum_buffer;
  const auto& vec = vector_kernels<float>();
  parallel_ranges(count, kFlatGrain, [&](int64_t begin, int64_t end) {
    vec.sgd(p + begin, g + begin, buffer == nullptr ? nullptr : buffer + begin, end - begin, step);
  });
}

}  // namespace ftrun

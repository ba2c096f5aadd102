#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "graph/op.h"

// LibTorch's autograd in fp64 is the oracle of the kernels. Only oracle.cc includes LibTorch's
// headers, because they compile slowly.
namespace ftrun::testing {

/// Array is a dense row-major array of numbers.
struct Array {
  std::vector<int64_t> dims;
  std::vector<double> data;
  /// The dtype in which the numbers were stored: comparisons allow one rounding for 16 bits.
  DType dtype = DType::kF64;
};

/// OracleCase is a forward operation with its inputs, and the gradient of the loss with respect to
/// its first output (for kAddRmsNorm also the second, if `second_gradient` has data).
struct OracleCase {
  OpKind kind;
  OpAttrs attrs;
  /// The floating-point inputs, in the order that ops/KIND defines.
  std::vector<Array> inputs;
  /// The integer input: tokens, starts or labels.
  std::vector<int32_t> ints;
  Array gradient;
  Array second_gradient;
  double loss_scale = 1.0;
  /// Rounds the gradient of the logits of kLinearCrossEntropy to bf16 before it is multiplied.
  bool bf16_logits_gradient = false;
};

struct OracleResult {
  std::vector<Array> outputs;
  /// The gradient with respect to each input.
  std::vector<Array> gradients;
};

/// Runs the case. kLinearCrossEntropy returns the two numbers of its loss (sum and count), and
/// gradients of `loss_scale` times the loss.
OracleResult oracle(const OracleCase& c);

struct OptimizerCase {
  std::vector<float> parameters;
  /// The gradients of each step.
  std::vector<std::vector<float>> gradients;
  double learning_rate = 1e-3;
  double weight_decay = 0.0;
};
/// Returns the parameters after all steps of torch.optim's Adam, AdamW, SGD and Adagrad.
std::vector<float> oracle_adam(const OptimizerCase& c, bool decoupled, double beta1, double beta2,
                               double epsilon);
std::vector<float> oracle_sgd(const OptimizerCase& c, double momentum, double dampening,
                              bool nesterov);
std::vector<float> oracle_adagrad(const OptimizerCase& c, double lr_decay,
                                  double initial_accumulator_value);

}  // namespace ftrun::testing

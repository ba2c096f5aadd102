#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "graph/op.h"

// LibTorch's autograd in fp64 as the oracle of the kernels. This header does not include
// LibTorch's: they compile slowly and only oracle.cc needs them.
namespace ftrun::test {

/// Array is a dense row-major array of numbers.
struct Array {
  std::vector<int64_t> dims;
  std::vector<double> data;
  /// The dtype that the numbers were stored as: results in 16 bits may be off by a rounding each.
  DType dtype = DType::kF64;
};

/// OracleCase is a forward operation on given inputs and the gradient of the loss with respect to
/// its first output (the second for kAddRmsNorm also when `second_gradient` has data).
struct OracleCase {
  OpKind kind;
  OpAttrs attrs;
  /// Floating-point inputs in the order of ops/KIND.
  std::vector<Array> inputs;
  /// Tokens, starts or labels.
  std::vector<int32_t> ints;
  Array gradient;
  Array second_gradient;
  double loss_scale = 1.0;
  /// The gradient of the logits of kLinearCrossEntropy is rounded to bf16 before its products.
  bool bf16_logits_gradient = false;
};

struct OracleResult {
  std::vector<Array> outputs;
  /// The gradients with respect to each of the inputs.
  std::vector<Array> gradients;
};

/// Runs the case. kLinearCrossEntropy gives the two numbers of its loss value, and gradients of
/// loss_scale times the loss.
OracleResult oracle(const OracleCase& c);

struct OptimizerCase {
  std::vector<float> parameters;
  /// Gradients of each step.
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

}  // namespace ftrun::test

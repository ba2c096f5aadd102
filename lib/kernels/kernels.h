#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/norm_blocks.h"

namespace ftrun {

struct LayerGraph;
struct Op;

/// The scalars of a step that change from step to step. They live in one place that kernels read,
/// so that programs and captured graphs never change.
struct StepScalars {
  /// 1 / counted tokens of the global batch, times the loss scale in fp16.
  float loss_scale = 1.0F;
  float learning_rate = 0.0F;
  /// In double: 1 - beta2 of a beta2 rounded to float would be wrong in the fifth digit.
  double beta1 = 0.9;
  double beta2 = 0.999;
  /// 1 - beta1^t and 1 - beta2^t of this step, computed in double (1 without bias correction).
  float bias_correction1 = 1.0F;
  float bias_correction2 = 1.0F;
  /// Multiplies gradients before the update: min(1, clip / (norm + 1e-6)), or 1; in fp16 divided by
  /// the loss scale that the gradients were made with (norm is the norm without it).
  float gradient_scale = 1.0F;
  /// Of this step's stochastic rounding: see rounding_key().
  uint64_t rounding_key = 0;
  /// Of this step's dropout: see dropout_key().
  uint64_t dropout_key = 0;
};

struct KernelContext {
  /// Gradients of parameters are added to what is there; false overwrites.
  bool accumulate = false;
  const StepScalars* scalars = nullptr;
  /// What masks of dropout depend on beside the step: the layer of the model, and the place of token 0 among those of the
  /// step's global batch.
  int64_t layer = 0;
  int64_t first_token = 0;
};

/// Runs one operation. `storage[v]` is the address of value v of `graph` (null for values the
/// operation does not use); addresses are 64-byte aligned except parameters' and their
/// gradients', which are aligned as their elements are. Runs on the calling thread and LibTorch's
/// intra-op threads. Error(kUnsupported) for a dtype or a processor the kernels do not know.
///
/// Results have the same bits for any number of threads; another library of matrix products
/// (kernels/products.h) may round otherwise. In BF16 and F16 graphs arithmetic is fp32 (products of
/// bf16 as it is take subnormal numbers for 0) and every result is rounded once (a 16-bit gradient
/// of the head's matrix once a chunk of tokens); gradients of parameters are F32, BF16 or F16 as
/// their values say. Graphs with F64 activations run at reference precision, for tests: their rstd
/// and lse are F64 too.
void run_op(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context);

// --- kernels on flat ranges ------------------------------------------------------------------
// Ranges need the alignment of their elements only. Results have the same bits for any number of
// threads and, but for sum_of_squares, however a buffer is cut into calls. Arithmetic is fp32;
// results are rounded to nearest, ties to even, unless said otherwise.

/// Sum of squares of g[0..count), F32, BF16 or F16, in double, added up as norm_blocks.h says from
/// g's start. NaN or infinity in g give a non-finite result.
double sum_of_squares(const void* g, DType dtype, int64_t count);

/// to[i] = from[i], between F32, BF16 and F16. The ranges are apart, or the same with one dtype.
void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count);

/// to[i] += from[i], F32, BF16 or F16 each: added in fp32, rounded once.
void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);

/// What one Adam or SGD step reads and writes: flat ranges of `count` elements.
struct FlatUpdate {
  /// The parameters that are kept: F32, or BF16 rounded stochastically.
  void* parameters = nullptr;
  DType parameter_dtype = DType::kF32;
  /// F32, BF16 or F16.
  const void* gradients = nullptr;
  DType gradient_dtype = DType::kF32;
  /// Adam: first and second moment. SGD: momentum buffer (null without momentum), and null. F32, or
  /// BF16 rounded stochastically.
  void* state1 = nullptr;
  void* state2 = nullptr;
  DType state_dtype = DType::kF32;
  /// When given, gets the new parameters in F32, BF16 or F16: what the layers compute with. Not the
  /// parameters' own memory.
  void* copy = nullptr;
  DType copy_dtype = DType::kBF16;
  int64_t count = 0;
  /// Number of the first element among all parameters that a tensor-parallel rank uses, the same
  /// however data-parallel ranks and calls cut them: it decides the random bits of stochastic rounding.
  int64_t first_index = 0;
};

/// StepScalars::rounding_key of a step. Stochastic rounding takes one of the two neighbours with
/// probabilities that make the expected result exact; its bits are a function of this key and
/// FlatUpdate::first_index alone.
uint64_t rounding_key(uint64_t seed, int64_t step);

/// StepScalars::dropout_key of a step. Which elements dropout makes 0 is a function of this key and of where they stand
/// (kernels/dropout_mask.h) alone, so backward makes the mask again, and so does any layout of the ranks.
uint64_t dropout_key(uint64_t seed, int64_t step);

struct AdamOptions {
  float epsilon = 1e-8F;
  float weight_decay = 0.0F;
  /// True: AdamW (decoupled decay, Loshchilov & Hutter 2019). False: decay is added to the
  /// gradient.
  bool decoupled = true;
};
/// One Adam step (Kingma & Ba 2015, algorithm 1), with gradient_scale applied to g on the way:
/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m/c1 / (sqrt(v/c2) + eps) + wd p).
/// One pass: 28 bytes of traffic an element in fp32. Error(kUnsupported) for other dtypes.
void adam_update(const FlatUpdate& update, const AdamOptions& options, const StepScalars& scalars);

struct SgdOptions {
  float momentum = 0.0F;
  float dampening = 0.0F;
  float weight_decay = 0.0F;
  bool nesterov = false;
  /// The first step sets the momentum buffer to the gradient (torch.optim.SGD).
  bool first_step = false;
};
/// torch.optim.SGD over flat ranges. Error(kUnsupported) as above.
void sgd_update(const FlatUpdate& update, const SgdOptions& options, const StepScalars& scalars);

/// Threads kernels use from now on in this process (LibTorch's intra-op threads).
void set_kernel_threads(int threads);
int kernel_threads();
/// One product of square matrices in `memory` (kWarmUpBytes of zeros, left in any state): after it BLAS
/// has its threads and the memory into which it packs operands, which it keeps.
void warm_up_products(void* memory);
inline constexpr int64_t kWarmUpSide = 512;
inline constexpr int64_t kWarmUpBytes = 3 * kWarmUpSide * kWarmUpSide * 4;
/// Kernels that the calling thread runs use no other thread. For the threads of other lanes than
/// compute: each would get an OpenMP team of its own.
void run_kernels_on_this_thread();

}  // namespace ftrun

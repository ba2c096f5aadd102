#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "kernels/gradient_norm_blocks.h"
#include "kernels/step_scalars.h"
#include "optimizers/block_map.h"
#include "optimizers/max_states.h"

namespace ftrun {

struct LayerGraph;
struct Op;
struct OptimizerConfig;

/// KernelContext holds the arguments of an operation that are not values of its graph.
struct KernelContext {
  /// Says whether gradients of parameters are added to the old ones. False: they overwrite the old
  /// ones.
  bool accumulate = false;
  const StepScalars* scalars = nullptr;
  /// The inputs of dropout masks besides the step's key: the layer of the model, and the index of
  /// token 0 among the tokens of the step's global batch.
  int64_t layer = 0;
  int64_t first_token = 0;
};

/// Runs one operation. `storage[v]` is the address of value v of `graph` (null for values the
/// operation does not use); addresses are 64-byte aligned except parameters' and their gradients',
/// which are aligned as their elements are. Runs on the calling thread and LibTorch's intra-op
/// threads. Throws Error(kUnsupported) for a dtype or a CPU that the kernels do not support.
///
/// Results have the same bits for any number of threads; another library of matrix multiplication
/// (kernels/choose_matmul_library.h) may round differently. In BF16 and F16 graphs arithmetic is
/// fp32 (multiplications of bf16 without widening treat subnormals as 0) and every result is
/// rounded once (a 16-bit gradient of the head's matrix once for each chunk of tokens); gradients
/// of parameters are F32, BF16 or F16, as their values in the graph are. Graphs with F64
/// activations run at reference precision, for tests; their rstd and lse are also F64.
void run_op(const LayerGraph& graph, const Op& op, std::span<void* const> storage,
            const KernelContext& context);

// --- kernels on flat ranges ------------------------------------------------------------------
// Ranges need the alignment of their elements only. Results have the same bits for any number of
// threads and, except sum_of_squares(), for any division of a buffer into calls. Arithmetic is
// fp32; results are rounded to nearest, ties to even, except where stochastic rounding is named.

/// Sums the squares of g[0..count), F32, BF16 or F16, in double, in the order of
/// gradient_norm_blocks.h from g's start. NaN or infinity in g give a non-finite result.
double sum_of_squares(const void* g, DType dtype, int64_t count);

/// Converts to[i] = from[i], between F32, BF16 and F16. The ranges must not overlap, unless they
/// are the same and have one dtype.
void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t count);

/// Adds to[i] += from[i], each F32, BF16 or F16; the sum is in fp32 and rounded once.
void add_into(void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);

/// FlatUpdate holds the operands of one optimizer step: flat ranges of `count` elements.
struct FlatUpdate {
  /// The parameters that the optimizer keeps: F32, or BF16 rounded stochastically.
  void* parameters = nullptr;
  DType parameter_dtype = DType::kF32;
  /// The gradients: F32, BF16 or F16.
  const void* gradients = nullptr;
  DType gradient_dtype = DType::kF32;
  /// The optimizer's states in the order of optimizer_states(), null after the last. F32, BF16
  /// rounded stochastically, or U8: codes (optimizers/code_map.h).
  std::array<void*, kMaxOptimizerStates> states{};
  DType state_dtype = DType::kF32;
  /// The scale of each block of kCodeBlock elements, for states that are codes. `blocks` maps the
  /// range to the tensor's blocks.
  std::array<float*, kMaxOptimizerStates> scales{};
  BlockMap blocks = {};
  /// The scales after the step, of the blocks of which the range has elements: the caller gives
  /// them, or compute_scales() does. Null: the step computes each new scale from the block's
  /// elements in the range, and replaces the old scale.
  std::array<float*, kMaxOptimizerStates> new_scales{};
  /// The memory for a copy of the new parameters in F32, BF16 or F16, with which the layers
  /// compute; null for none. It is not the parameters' own memory.
  void* copy = nullptr;
  DType copy_dtype = DType::kBF16;
  int64_t count = 0;
  /// The index of the first element among all parameters that a tensor-parallel rank uses, which
  /// does not depend on how data-parallel ranks and calls cut them. It decides the random bits of
  /// stochastic rounding.
  int64_t first_element = 0;
};

/// Returns StepScalars::rounding_key of a step. Stochastic rounding chooses one of the two
/// neighbors with probabilities that make the expected result exact; its bits depend only on this
/// key and FlatUpdate::first_element.
uint64_t rounding_key(uint64_t seed, int64_t step);

/// Returns StepScalars::dropout_key of a step. The elements that dropout sets to 0 depend only on
/// this key and on their position (kernels/dropout_mask.h), so backward computes the mask again,
/// and every layout of the ranks has the same mask.
uint64_t dropout_key(uint64_t seed, int64_t step);

/// Runs one step of an optimizer that is offered (optimizers/NAME/update.inc), with
/// update_gradient_factor applied to the gradients, in one pass over memory. Codes are decoded
/// before the step; those of a block are encoded after it, with the block's new scale. Throws
/// Error(kUnsupported) for other dtypes.
void optimizer_update(const FlatUpdate& update, const OptimizerConfig& config,
                      const StepScalars& scalars);

/// Runs the first half of a step with `new_scales`: raises the new scales to at least those that
/// the range's elements need. It changes nothing else.
void compute_scales(const FlatUpdate& update, const OptimizerConfig& config,
                    const StepScalars& scalars);

/// Sets the number of threads that kernels use from now on in this process (LibTorch's intra-op
/// threads).
void set_kernel_threads(int threads);
int kernel_threads();
/// Runs the largest matrix multiplication for which BLAS is called once on each thread, in fp32
/// and, if layers compute in bf16, in bf16. `memory` has warm_up_bytes() bytes of zeros, and is
/// left in any state. Afterwards BLAS has started its threads, compiled its kernels and allocated
/// the memory into which it packs operands, which it keeps.
void warm_up_matmul(DType compute_dtype, std::byte* memory);
/// Returns the bytes of memory that warm_up_matmul() needs.
int64_t warm_up_bytes();
/// Returns the bytes that each thread keeps for attention's tiles in fp32 once it has computed
/// attention with heads of this size.
int64_t attention_tile_bytes(int64_t head_size);
/// Makes kernels that the calling thread runs use no other thread. The threads of lanes other than
/// compute call it, because otherwise each would get its own OpenMP team.
void run_kernels_on_this_thread();

}  // namespace ftrun

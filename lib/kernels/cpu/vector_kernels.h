#pragma once

#include <cstdint>

#include "kernels/gradient_norm_blocks.h"
#include "kernels/step_scalars.h"
#include "ops/activation/activations.h"
#include "ops/attention/workspace.h"
#include "optimizers/block_map.h"
#include "optimizers/max_states.h"
#include "optimizers/optimizer_config.h"

namespace ftrun {

// This header is included by sources that are compiled for different instruction sets. It has only
// declarations and plain data: of the copies of a function body, the linker would keep an arbitrary
// one, which may use instructions that the CPU does not have.

/// StatisticTypeOf is the type of saved statistics (rstd, lse) for activations of type S.
template <class S>
struct StatisticTypeOf {
  using Type = float;
};
template <>
struct StatisticTypeOf<double> {
  using Type = double;
};
template <class S>
using Stat = typename StatisticTypeOf<S>::Type;

/// BFloat16 is an element stored as the upper half of an fp32 number; Float16 is IEEE's half
/// precision.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

/// ComputeTypeOf is the type of the arithmetic on elements stored as S.
template <class S>
struct ComputeTypeOf {
  using Type = S;
};
template <>
struct ComputeTypeOf<BFloat16> {
  using Type = float;
};
template <>
struct ComputeTypeOf<Float16> {
  using Type = float;
};
template <class S>
using Compute = typename ComputeTypeOf<S>::Type;

/// SoftmaxStatistics holds the largest number of a row, and the sum of exp(number - largest).
struct SoftmaxStatistics {
  double max;
  double sum;
};

/// FlatType is the element type of a flat range, an index in the tables of FlatKernels.
enum class FlatType : uint8_t { kF32, kBF16, kF16 };
inline constexpr int kFlatTypes = 3;
/// The number of types that optimizer state may have: F32 and BF16.
inline constexpr int kStateTypes = 2;

/// FlatUpdateRange is the part of a FlatUpdate that one call of a kernel works on.
struct FlatUpdateRange {
  void* parameters;
  const void* gradients;
  /// The optimizer's states; null after the last.
  void* states[kMaxOptimizerStates];
  /// The scales of states that are codes, as in FlatUpdate; null where states are numbers. The
  /// kernel updates the elements of the range that are in these blocks.
  float* scales[kMaxOptimizerStates];
  float* new_scales[kMaxOptimizerStates];
  BlockMap blocks;
  int64_t first_block, last_block;
  /// The memory for the new parameters rounded to copy_type, or null.
  void* copy;
  FlatType copy_type;
  int64_t count;
  /// The index of element 0 among all parameters that a tensor-parallel rank uses
  /// (FlatUpdate::first_element), and the key of the step. The random bits of the stochastic
  /// rounding of bf16 state depend only on these two.
  int64_t first_element;
  uint64_t rounding_key;
};

/// UpdateKernel runs one step of an optimizer. Tables of it are indexed by the types of parameters,
/// gradients and states; an entry is null where a rule does not have that many states.
using UpdateKernel = void (*)(const FlatUpdateRange& range, const void* rule);
struct UpdateKernels {
  UpdateKernel by_types[kStateTypes][kFlatTypes][kStateTypes];
};
/// Update8bitKernels update states that are codes, or only compute their new scales. Entries are by
/// the types of parameters and gradients; null for rules without codes.
struct Update8bitKernels {
  UpdateKernel by_types[kStateTypes][kFlatTypes];
  UpdateKernel compute_scales[kStateTypes][kFlatTypes];
};

/// FlatKernels holds the vector code on flat ranges, indexed by the types that it reads and writes.
struct FlatKernels {
  /// Sums the squares of at most kGradientNormGroup elements.
  double (*sum_of_squares[kFlatTypes])(const void* g, int64_t count);
  /// Converts `from` to `to`, indexed [from][to]; `streams` writes around the caches.
  void (*convert[kFlatTypes][kFlatTypes])(const void* from, void* to, int64_t count, bool streams);
  /// Adds to += from, indexed [to][from].
  void (*add_into[kFlatTypes][kFlatTypes])(void* to, const void* from, int64_t count);
  /// The update kernels by OptimizerType and number of states. Their `rule` is the type's rule of
  /// the step (optimizers/NAME/update.inc).
  UpdateKernels update[kOfferedOptimizers][kMaxOptimizerStates + 1];
  Update8bitKernels update_8bit[kOfferedOptimizers];
  /// Dequantizes out[i] = scale * values[code i], where `values` has 16 numbers; a byte holds two
  /// codes, the first in its upper half. `count` is a multiple of 32.
  void (*dequantize_nf4)(const uint8_t* codes, const float* values, float scale, float* out,
                         int64_t count);
  /// Dequantizes out[i] = codes[i] * scale * step.
  void (*dequantize_int8)(const int8_t* codes, float scale, float step, float* out, int64_t count);
};

/// DropoutRow is one row of a dropout, ready to run: see kernels/dropout_mask.h.
struct DropoutRow {
  uint32_t low_key, high_key;
  uint32_t least_kept;
  double scale;
};

/// The number of scratch elements of a tile of attention, in addition to 128 padded_head.
inline constexpr int64_t kForwardScratch = kAttentionBlock * (kAttentionBlock + 3);
inline constexpr int64_t kBackwardScratch = kAttentionBlock * (5 * kAttentionBlock / 2 + 16);

/// AttentionForwardTile holds the operands of the forward pass of one query block of one head.
template <class S>
struct AttentionForwardTile {
  /// The row of the block's first token; rows are `qkv_stride` apart.
  const S* q;
  int64_t qkv_stride;
  /// The key/value blocks from 0 on of this row and head, as pack_columns and pack_rows wrote them.
  const Compute<S>* keys_transposed;
  const Compute<S>* values;
  int64_t head_size, padded_head;
  double scale;
  /// The bound on scores; 0: scores have none.
  double softcap;
  /// The index of the block, its number of tokens, and the first key block to which any of them
  /// attends.
  int64_t block, rows, first_key_block;
  /// The first token (index in the row) to which each of the block's tokens attends.
  const int32_t* lowest;
  S* out;
  int64_t out_stride;
  Stat<S>* lse;
  /// Scratch of 128 padded_head + kForwardScratch elements.
  Compute<S>* scratch;
};

/// AttentionBackwardTile holds the operands of the backward pass of one key block against one query
/// block of one head.
template <class S>
struct AttentionBackwardTile {
  const S* q;
  const S* da;
  int64_t qkv_stride, da_stride;
  /// Keys and values as pack_columns wrote them; `keys` are the keys as pack_rows wrote them.
  const Compute<S>* keys_transposed;
  const Compute<S>* values_transposed;
  const Compute<S>* keys;
  int64_t head_size, padded_head;
  double scale;
  /// The bound on scores; 0: scores have none.
  double softcap;
  int64_t query_block, key_block, rows;
  const int32_t* lowest;
  const Stat<S>* lse;
  const Stat<S>* delta;
  /// The gradients, each [64,padded_head]: dq is written or, with `accumulate_dq`, added to; dk and
  /// dv are added to. dq and dk are not scaled yet.
  Compute<S>* dq;
  bool accumulate_dq;
  Compute<S>* dk;
  Compute<S>* dv;
  /// Scratch of 128 padded_head + kBackwardScratch elements.
  Compute<S>* scratch;
};

/// VectorKernels holds the vector code for activations of type S. Ranges and rows are contiguous
/// unless a stride is given.
template <class S>
struct VectorKernels {
  // --- rows ---------------------------------------------------------------------------------
  // Functions that belong to one operation come first, then those that several operations call.
#define FTRUN_ROWS(result, name, ...) result (*name)(__VA_ARGS__);
#define FTRUN_WIDE_ROWS FTRUN_ROWS
#include "ops/rows.inc"

  /// Adds the sum over the rows of x to `sums`.
  void (*column_sums)(const S* x, Compute<S>* sums, int64_t rows, int64_t width);
  /// Adds `count` rows of sums, `stride` elements apart, in order to out (or to 0), and rounds
  /// once.
  void (*add_partials)(const Compute<S>* partials, int64_t count, int64_t stride, S* out,
                       int64_t width, bool accumulate);
  /// Converts from the stored type to the type of the arithmetic.
  void (*widen)(const S* from, Compute<S>* to, int64_t count);
  /// Rounds to the stored type; `to` may begin where `from` does.
  void (*narrow)(const Compute<S>* from, S* to, int64_t count);

  // --- attention ----------------------------------------------------------------------------
  // Packs right operands of matrix multiplications: rows of src that are summed over, or that
  // become columns of the result. The instruction set decides the layout: numbers, [64,padded] and
  // [padded,64], or pairs of bf16 in no more bytes.
  void (*pack_rows)(const S* src, int64_t stride, int64_t rows, int64_t width, int64_t padded,
                    Compute<S>* out);
  void (*pack_columns)(const S* src, int64_t stride, int64_t rows, int64_t width, int64_t padded,
                       Compute<S>* out);
  /// Sums dst[rows,width] = factor * sum over `count` tiles, `step` elements apart, in order.
  void (*unpack_sum)(const Compute<S>* tile, int64_t count, int64_t step, int64_t rows,
                     int64_t width, int64_t padded, double factor, S* dst, int64_t stride);
  void (*attention_forward)(const AttentionForwardTile<S>& tile);
  void (*attention_backward)(const AttentionBackwardTile<S>& tile);
  /// Returns the dot product of a and b.
  double (*dot)(const S* a, const S* b, int64_t count);
};

namespace avx2 {
extern const VectorKernels<float> kFloat;
extern const VectorKernels<double> kDouble;
extern const VectorKernels<BFloat16> kBFloat16;
extern const VectorKernels<Float16> kFloat16;
extern const FlatKernels kFlat;
}  // namespace avx2
namespace avx512 {
extern const VectorKernels<float> kFloat;
extern const VectorKernels<double> kDouble;
extern const VectorKernels<BFloat16> kBFloat16;
extern const VectorKernels<Float16> kFloat16;
extern const FlatKernels kFlat;
}  // namespace avx512
namespace avx512_bf16 {
extern const VectorKernels<BFloat16> kBFloat16;
}  // namespace avx512_bf16
namespace amx {
extern const VectorKernels<BFloat16> kBFloat16;
}  // namespace amx

/// Isa lists instruction sets, each a superset of those before it. With the last two, attention
/// multiplies bf16 without widening: by vdpbf16ps, and on Intel's matrix units (AMX).
enum class Isa : uint8_t { kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// Returns whether this CPU and its operating system kernel can run `isa`. A call with kAmx
/// requests the matrix units from the kernel, which then keeps their state for every thread of the
/// process.
bool can_run(Isa isa);
/// Returns the instruction set that is known to be fastest on CPUs of this kind
/// (docs/benchmarks.md): kAmx on Intel's, kAvx512Bf16 on AMD's, whose units multiply twice as many
/// bf16 as fp32. Neither was measured on CPUs of the other vendor. Throws Error(kUnsupported)
/// without AVX2, FMA and F16C.
Isa best_isa();
/// Chooses the vector code, which can_run() must allow. Without a call best_isa() is used, or no
/// more than AVX2 or AVX-512 where the environment has ATEN_CPU_CAPABILITY=avx2 or =avx512.
void set_isa(Isa isa);
Isa isa_in_use();
template <class S>
const VectorKernels<S>& vector_kernels();
const FlatKernels& flat_kernels();

}  // namespace ftrun

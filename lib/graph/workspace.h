#pragma once

#include <cstdint>

namespace ftrun {

struct AttentionAttrs;
struct CrossEntropyAttrs;
struct LayerGraph;
struct Op;

// How operations lay out their scratch memory (on GPUs: graph/gpu_workspace.h). The planner asks for the bytes,
// the kernels for the offsets; both come from here. (Declarations only: the vector kernels include this file.)

/// Bytes of scratch an operation needs with `values`' shapes and the graph's kernels, which rely on exactly
/// this.
int64_t workspace_bytes(const LayerGraph& graph, const Op& op);

/// Tokens of a query block and of a key block of attention.
inline constexpr int64_t kAttentionBlock = 64;

/// Rows summed into one partial gradient of a norm weight or bias; partial gradients are added in
/// order.
inline constexpr int64_t kWgradRows = 64;

/// Byte offsets in the scratch of kAttention and kAttentionDgrad; -1 for what an operation does not
/// use. Tiles are as large as in the type that is computed with, never 16 bits; what lies in them is the instruction set's.
struct AttentionWorkspace {
  /// Head size rounded up to whole vectors.
  int64_t padded_head = 0;
  int64_t batch_rows = 0;
  /// Blocks of a row of tokens.
  int64_t blocks = 0;
  /// The backward pass deals key blocks out to this many classes, each with its own sum of dq. It
  /// depends on the shape alone, so results do not depend on the number of threads.
  int64_t classes = 1;
  /// I32[N]: first token each token attends to; I32[batch_rows, blocks]: first key block of a query
  /// block.
  int64_t lowest = -1;
  int64_t first_block = -1;
  /// [batch_rows, K, blocks] tiles of 64 x padded_head: keys transposed, values.
  int64_t keys = -1;
  int64_t values = -1;
  /// [H, N] statistics: da . a of each head and token.
  int64_t delta = -1;
  /// [classes, batch_rows, H, blocks] tiles of 64 x padded_head.
  int64_t dq = -1;
  int64_t bytes = 0;
};
AttentionWorkspace attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                       int64_t element_bytes, bool backward);

/// Byte offsets in the scratch of kLinearCrossEntropy.
struct CrossEntropyWorkspace {
  /// Tokens of a chunk: the attribute, or all there are.
  int64_t chunk = 0;
  /// Tokens whose logits fit in the same bytes as F32: the chunk of kernels that keep the logits of
  /// 16-bit operands so.
  int64_t wide_chunk = 0;
  /// I32[N]: tokens that count. F64[chunk]: their losses.
  int64_t counted = -1;
  int64_t losses = -1;
  /// [chunk, D] rows gathered when counted tokens are not neighbours; [chunk, V].
  int64_t rows = -1;
  int64_t logits = -1;
  /// With 16-bit operands or weight gradient: F32[panel_rows, D] of w or dw.
  int64_t panel_rows = 0;
  int64_t panel = -1;
  int64_t bytes = 0;
};
/// `element_bytes` of x and w, `gradient_bytes` of dw: the offsets before `panel` do not depend on
/// it.
CrossEntropyWorkspace cross_entropy_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                              const CrossEntropyAttrs& attrs, int64_t element_bytes,
                                              int64_t gradient_bytes = 4);

/// The same of kVocabularyLogits and kVocabularyCrossEntropy, whose logits are values of the graph:
/// `tokens` is the chunk, and `logits` is -1.
CrossEntropyWorkspace vocabulary_workspace(int64_t tokens, int64_t hidden, int64_t vocabulary,
                                           int64_t element_bytes, int64_t gradient_bytes = 4);

/// A matrix product c[m,n] = a[m,k] b[k,n] of 16-bit operands, or with a 16-bit result, goes
/// through F32 panels: byte offsets, -1 for what is not in 16 bits.
struct ProductWorkspace {
  /// Largest panel of c, and of k: a[rows,depth] b[depth,columns].
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  int64_t a = -1;
  int64_t b = -1;
  int64_t c = -1;
  int64_t bytes = 0;
};
/// `packed`: b is, and panels of it are unpacked, each for as many rows of a as there is room for.
ProductWorkspace product_workspace(int64_t m, int64_t n, int64_t k, int64_t operand_bytes,
                                   int64_t result_bytes, bool packed = false);

/// Byte offsets in the scratch of kLoraUp and its gradients; the panels of their products begin at 0.
struct LoraWorkspace {
  /// [N,J] of the dtype of h: h with the scale of each part. Of kLoraUpDgrad, which makes it in place, none.
  int64_t scaled = -1;
  int64_t bytes = 0;
};
LoraWorkspace lora_workspace(const LayerGraph& graph, const Op& op);

/// Byte offsets in the scratch of kDoraSquaredLengths, -1 for what it does not use; all of the type that is computed with.
struct DoraWorkspace {
  /// Rows of W that are looked at together.
  int64_t rows = 0;
  /// [rows,I] of W + scale B A; [rows, largest r] of scale B; [J,I] of A where that is in 16 bits.
  int64_t panel = -1;
  int64_t b = -1;
  int64_t a = -1;
  int64_t bytes = 0;
};
DoraWorkspace dora_workspace(const LayerGraph& graph, const Op& op);

}  // namespace ftrun

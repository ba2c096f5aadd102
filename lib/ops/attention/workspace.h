#pragma once

#include <cstdint>

namespace ftrun {

struct AttentionAttrs;

// Declarations only: the vector kernels include this file.

/// Tokens of a query block and of a key block of attention.
inline constexpr int64_t kAttentionBlock = 64;

/// AttentionWorkspace holds byte offsets in the scratch of attention and attention_dgrad; -1 for
/// what an operation does not use. Tiles are as large as in the type that is computed with, never
/// 16 bits; the layout inside them is the instruction set's.
struct AttentionWorkspace {
  /// Head size rounded up to whole vectors.
  int64_t padded_head = 0;
  int64_t batch_rows = 0;
  /// Blocks of a row of tokens.
  int64_t blocks = 0;
  /// The backward pass deals key blocks out to this many classes, each with its own sum of dq. The
  /// number depends only on the shape, so results do not depend on the number of threads.
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

}  // namespace ftrun

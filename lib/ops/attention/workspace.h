#pragma once

#include <cstdint>

namespace ftrun {

struct AttentionAttrs;

// This header has declarations only, because the vector kernels include it.

/// The number of tokens of a query block and of a key block of attention.
inline constexpr int64_t kAttentionBlock = 64;

/// AttentionWorkspace holds byte offsets in the scratch of attention and attention_dgrad; -1 for
/// what an operation does not use. Tiles have the size of the type of the arithmetic, which never
/// has 16 bits; the instruction set decides the layout inside them.
struct AttentionWorkspace {
  /// The head size rounded up to whole vectors.
  int64_t padded_head = 0;
  int64_t batch_rows = 0;
  /// The number of blocks of tokens of a sequence.
  int64_t blocks = 0;
  /// The number of classes over which the backward pass distributes key blocks, each with its own
  /// sum of dq. It depends only on the shape, so results do not depend on the number of threads.
  int64_t classes = 1;
  /// The offsets of I32[N], the first token to which each token attends, and of I32[batch_rows,
  /// blocks], the first key block of each query block.
  int64_t lowest = -1;
  int64_t first_block = -1;
  /// The offsets of [batch_rows, K, blocks] tiles of 64 x padded_head: keys transposed, and values.
  int64_t keys = -1;
  int64_t values = -1;
  /// The offset of the statistics [H, N]: da . a of each head and token.
  int64_t delta = -1;
  /// The offset of [classes, batch_rows, H, blocks] tiles of 64 x padded_head.
  int64_t dq = -1;
  int64_t bytes = 0;
};
AttentionWorkspace attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                       int64_t element_bytes, bool backward);

}  // namespace ftrun

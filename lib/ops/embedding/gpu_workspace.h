#pragma once

#include <cstdint>

namespace ftrun {

/// The largest number of tokens of one row of the embedding that a single block adds to the row's
/// gradient. More tokens are added in parts.
inline constexpr int kEmbedPart = 128;
/// The number of lists whose lengths are counted on the device: tokens, parts, rows.
inline constexpr int kEmbedLists = 3;

/// GpuEmbedWorkspace holds byte offsets in the scratch of embed_wgrad for rows that occur more than
/// kEmbedPart times; all are -1 if there are too few tokens for such rows.
struct GpuEmbedWorkspace {
  /// The largest possible numbers of parts and of such rows.
  int64_t parts = 0;
  int64_t rows = 0;
  /// The offsets of I32[kEmbedLists], the lengths of the lists, and of I32[N], tokens.
  int64_t used = -1;
  int64_t order = -1;
  /// The offsets of lists of I32[parts] each; those of `row` and `row_part` are I32[rows].
  int64_t part_place = -1;
  int64_t part_count = -1;
  int64_t part_next = -1;
  int64_t row = -1;
  int64_t row_part = -1;
  /// The offset of the sums, F32[parts, D].
  int64_t sums = -1;
  int64_t bytes = 0;
};
GpuEmbedWorkspace gpu_embed_workspace(int64_t tokens, int64_t width);

}  // namespace ftrun

#pragma once

#include <cstdint>

namespace ftrun {

/// The most tokens of one row of the embedding that one block adds to the row's gradient; more
/// tokens are added in parts.
inline constexpr int kEmbedPart = 128;
/// The number of lists whose lengths are counted on the device: tokens, parts, rows.
inline constexpr int kEmbedLists = 3;

/// GpuEmbedWorkspace holds byte offsets in the scratch of embed_wgrad for rows that occur more than
/// kEmbedPart times; all -1 where there are too few tokens for that.
struct GpuEmbedWorkspace {
  /// The largest possible numbers of parts and of such rows.
  int64_t parts = 0;
  int64_t rows = 0;
  /// The offsets of I32[kEmbedLists], the lengths of the lists, and of I32[N], tokens.
  int64_t used = -1;
  int64_t order = -1;
  /// I32[parts] each; I32[rows] each.
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

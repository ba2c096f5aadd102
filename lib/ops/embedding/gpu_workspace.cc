#include "ops/embedding/gpu_workspace.h"

#include "base/dtype.h"
#include "graph/offset_allocator.h"

namespace ftrun {

GpuEmbedWorkspace gpu_embed_workspace(int64_t tokens, int64_t width) {
  GpuEmbedWorkspace w;
  if (tokens <= kEmbedPart) return w;
  // A table row with n > kEmbedPart tokens has at most 2 * n / kEmbedPart parts.
  w.rows = tokens / kEmbedPart;
  w.parts = 2 * w.rows;
  const int64_t word = dtype_bytes(DType::kI32);
  OffsetAllocator offsets;
  w.used = offsets.reserve(kEmbedLists * word);
  w.order = offsets.reserve(tokens * word);
  for (int64_t* list : {&w.part_place, &w.part_count, &w.part_next})
    *list = offsets.reserve(w.parts * word);
  for (int64_t* list : {&w.row, &w.row_part}) *list = offsets.reserve(w.rows * word);
  w.sums = offsets.reserve(w.parts * width * dtype_bytes(DType::kF32));
  w.bytes = offsets.bytes();
  return w;
}

}  // namespace ftrun

#include "ops/embedding/gpu_workspace.h"

#include "base/dtype.h"
#include "ops/offsets.h"

namespace ftrun {

GpuEmbedWorkspace gpu_embed_workspace(int64_t tokens, int64_t width) {
  GpuEmbedWorkspace w;
  if (tokens <= kEmbedPart) return w;
  // A row with more than kEmbedPart tokens has at most twice as many parts as it has of that.
  w.rows = tokens / kEmbedPart;
  w.parts = 2 * w.rows;
  const int64_t word = dtype_bytes(DType::kI32);
  w.used = 0;
  w.order = after(w.used, kEmbedLists * word);
  w.part_place = after(w.order, tokens * word);
  w.part_count = after(w.part_place, w.parts * word);
  w.part_next = after(w.part_count, w.parts * word);
  w.row = after(w.part_next, w.parts * word);
  w.row_part = after(w.row, w.rows * word);
  w.sums = after(w.row_part, w.rows * word);
  w.bytes = after(w.sums, w.parts * width * dtype_bytes(DType::kF32));
  return w;
}

}  // namespace ftrun

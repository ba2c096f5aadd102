#include "ops/attention/cudnn_parts.h"

#include <algorithm>

#include "base/round_up.h"
#include "ops/attention/attention.h"
#include "ops/attention/gpu_workspace.h"

namespace ftrun {

namespace {

/// Engines that keep the scores in memory in backward round the number of tokens up to a multiple
/// of it.
constexpr int64_t kTileTokens = 64;

int64_t query_heads_of(const AttentionAttrs& attrs, const CudnnPart& part) {
  return attrs.query_heads / attrs.kv_heads * part.kv_heads;
}

/// Counts the bytes of the scores of one sequence and head.
int64_t score_bytes(const CudnnPart& part) {
  const int64_t side = round_up(part.max_tokens, kTileTokens);
  return side * side * dtype_bytes(DType::kBF16);
}

/// Returns the largest divisor of `number` that is at most `limit`, or 1.
int64_t largest_divisor(int64_t number, int64_t limit) {
  int64_t divisor = std::clamp<int64_t>(limit, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

/// Sizes a part: as many sequences and key heads as have at most `bytes` of scores, but at least
/// one of each. A part of sequences, which are long, preferably has few of them and all heads; a
/// part of documents preferably has all documents and few heads.
CudnnPart fit_to_bytes(CudnnPart part, const AttentionAttrs& attrs, int64_t tokens, int64_t bytes) {
  constexpr int64_t kAligned = 4;  // fp32 statistics of a part begin at multiples of 16 bytes
  part.kv_heads = attrs.kv_heads;
  const int64_t head_bytes = attrs.query_heads / attrs.kv_heads * score_bytes(part);
  const auto share_sequences = [&] {
    if (part.documents || part.max_tokens % kAligned == 0)
      part.sequences = largest_divisor(part.sequences, bytes / (head_bytes * part.kv_heads));
  };
  if (!part.documents) share_sequences();
  if (tokens % kAligned == 0)
    part.kv_heads = largest_divisor(attrs.kv_heads, bytes / (head_bytes * part.sequences));
  if (part.documents) share_sequences();
  return part;
}

}  // namespace

std::vector<CudnnPart> cudnn_parts(const AttentionAttrs& attrs, int64_t tokens, bool documents,
                                   int64_t part_bytes) {
  std::vector<CudnnPart> parts;
  if (documents)
    for (const GpuDocumentGroup& group : gpu_document_groups(tokens, attrs.sequence_length))
      parts.push_back(
          {.sequences = group.slots, .max_tokens = group.max_tokens, .documents = true});
  else
    parts.push_back(
        {.sequences = tokens / attrs.sequence_length, .max_tokens = attrs.sequence_length});
  for (CudnnPart& part : parts) part = fit_to_bytes(part, attrs, tokens, part_bytes);
  return parts;
}

int64_t cudnn_workspace_bytes(const AttentionAttrs& attrs, const CudnnPart& part) {
  const int64_t heads = query_heads_of(attrs, part);
  const int64_t scores = part.sequences * heads * score_bytes(part);
  if (attrs.query_heads == attrs.kv_heads) return scores;
  // The gradients of keys and values are kept for each query head, before those of heads that share
  // a key/value head are added.
  const int64_t elements =
      part.sequences * heads * round_up(part.max_tokens, kTileTokens) * attrs.head_size;
  return scores + 2 * elements * dtype_bytes(DType::kBF16);
}

bool cudnn_can_compute(const AttentionAttrs& attrs, DType dtype) {
  return dtype == DType::kBF16 && attrs.head_size % 8 == 0 && attrs.head_size <= kMaxCudnnHead &&
         attrs.sequence_length > 1 && attrs.softcap == 0;
}

}  // namespace ftrun

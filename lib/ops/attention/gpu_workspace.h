#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ftrun {

struct AttentionAttrs;

/// GpuDocumentGroup holds the documents whose length is above the next group's `max_tokens` and at
/// most its own; its list has room for `slots` of them.
struct GpuDocumentGroup {
  int64_t max_tokens = 0;
  int64_t slots = 0;
  /// The byte offsets of the lists in the scratch. I32[slots]: lengths in tokens, 0 where there is
  /// no document. I32[slots + 1] each: where a document begins, in elements of qkv, in elements of
  /// the result, and in tokens.
  int64_t lengths = -1;
  int64_t qkv_offsets = -1;
  int64_t out_offsets = -1;
  int64_t token_offsets = -1;
};
/// Groups the documents of sequences of `sequence_length`, longest first, for a library that
/// computes a fixed number of sequences of a fixed largest length. Each group except the last has
/// room for all documents of its lengths that the sequences can have; the last one has room for
/// documents whose average length is a quarter of its `max_tokens`.
std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t sequence_length);
inline constexpr size_t kMaxGpuDocumentGroups = 16;

/// GpuAttentionWorkspace holds byte offsets in the scratch of attention and attention_dgrad; -1 for
/// what the operation does not use.
struct GpuAttentionWorkspace {
  /// The offsets of I32[N], the first token to which each token attends, and of I32[sequences,
  /// blocks], the first key block of each query block.
  int64_t lowest = -1;
  int64_t first_block = -1;
  /// The offset of F32[H, N]: da . a of each head and token.
  int64_t delta = -1;
  /// The offset of an I32: the first token of the first document that no group holds, or N.
  int64_t uncovered = -1;
  std::vector<GpuDocumentGroup> groups = {};
  int64_t bytes = 0;
};
GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs,
                                              bool backward);

}  // namespace ftrun

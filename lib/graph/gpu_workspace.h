#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ftrun {

struct AttentionAttrs;
struct CrossEntropyAttrs;
struct LayerGraph;
struct Op;

// The scratch of the GPU's kernels, which keep what the processor's write to memory in registers: graphs of
// Kernels::kGpu are planned with it. (graph/workspace.h is the processor's. The kernels' library takes the
// offsets from here, so that a plan needs no GPU.)

/// Bytes of scratch an operation needs on a GPU.
int64_t gpu_workspace_bytes(const LayerGraph& graph, const Op& op);

/// Documents of more than the next group's `most_tokens` and at most this one's, and how many of them a list holds.
struct GpuDocumentGroup {
  int64_t most_tokens = 0;
  int64_t slots = 0;
  /// Byte offsets in the scratch. I32[slots]: lengths in tokens, 0 where there is no document. I32[slots + 1] each: where
  /// a document begins, in elements of qkv, in elements of the result, and in tokens.
  int64_t lengths = -1;
  int64_t qkv_offsets = -1;
  int64_t out_offsets = -1;
  int64_t token_offsets = -1;
};
/// A library that computes a fixed number of sequences of a fixed largest length gets the documents of rows of
/// `row_tokens` in these groups, longest first. Each group but the last holds all documents of its lengths that the rows
/// can have; the last one holds those of a quarter of its length on average.
std::vector<GpuDocumentGroup> gpu_document_groups(int64_t tokens, int64_t row_tokens);
inline constexpr size_t kMostGpuDocumentGroups = 16;

/// Byte offsets in the scratch of kAttention and kAttentionDgrad; -1 for what the operation does not use.
struct GpuAttentionWorkspace {
  /// I32[N]: first token each token attends to; I32[batch rows, blocks]: first key block of a query block.
  int64_t lowest = -1;
  int64_t first_block = -1;
  /// F32[H, N]: da . a of each head and token.
  int64_t delta = -1;
  /// I32: the first token of the first document that no group holds, or N.
  int64_t uncovered = -1;
  std::vector<GpuDocumentGroup> groups = {};
  int64_t bytes = 0;
};
GpuAttentionWorkspace gpu_attention_workspace(int64_t tokens, const AttentionAttrs& attrs, bool backward);

/// Byte offsets in the scratch of kLinearCrossEntropy.
struct GpuHeadWorkspace {
  /// Tokens of a chunk: the attribute, or all there are.
  int64_t chunk = 0;
  /// Elements from a row of logits to the next: V rounded up, so that every row begins where wide loads may, whatever V is.
  int64_t row = 0;
  /// F64[chunk]; without gradients I32[chunk]: which tokens are predicted; [chunk, row] in the dtype of x and w.
  int64_t losses = -1;
  int64_t correct = -1;
  int64_t logits = -1;
  int64_t bytes = 0;
};
GpuHeadWorkspace gpu_head_workspace(int64_t tokens, int64_t vocabulary, const CrossEntropyAttrs& attrs,
                                    int64_t element_bytes);
/// The same of kVocabularyCrossEntropy, whose logits are values of the graph: `tokens` is the
/// chunk, and `logits` is -1.
GpuHeadWorkspace gpu_vocabulary_workspace(int64_t tokens, bool with_gradients);

/// Tokens of one row of the embedding that one block adds to the row's gradient; more are added in parts.
inline constexpr int kEmbedPart = 128;
/// Lists whose lengths are counted on the device: tokens, parts, rows.
inline constexpr int kEmbedLists = 3;

/// Byte offsets in the scratch of kEmbedWgrad for rows that are met more than kEmbedPart times; all -1 where too few tokens come
/// for that.
struct GpuEmbedWorkspace {
  /// At most so many parts and such rows.
  int64_t parts = 0;
  int64_t rows = 0;
  /// I32[kEmbedLists]: used places of the lists; I32[N]: tokens.
  int64_t used = -1;
  int64_t order = -1;
  /// I32[parts] each; I32[rows] each.
  int64_t part_place = -1;
  int64_t part_count = -1;
  int64_t part_next = -1;
  int64_t row = -1;
  int64_t row_part = -1;
  /// F32[parts, D].
  int64_t sums = -1;
  int64_t bytes = 0;
};
GpuEmbedWorkspace gpu_embed_workspace(int64_t tokens, int64_t width);

/// Byte offsets in the scratch of kDoraSquaredLengths.
struct GpuDoraWorkspace {
  /// Of the matrix at a time.
  int64_t rows = 0;
  /// F32[rows, I]: scale B A; [rows, I] in the dtype of the activations: the weight where that is packed.
  int64_t delta = 0;
  int64_t weight = -1;
  int64_t bytes = 0;
};
/// Of a part with `columns` rows of the weight at most.
GpuDoraWorkspace gpu_dora_workspace(int64_t columns, int64_t inputs, int64_t element_bytes, bool is_packed);

/// Whether list[i] and the operation after it are the two gradients of a norm, which the GPU's kernels make in one pass:
/// the partial sums in the first one's scratch then live until the second is done.
bool is_norm_pair(std::span<const Op> list, size_t i);

/// A product by a packed weight unpacks it part by part: columns of the result that one part gives, of n, for a product of
/// depth k. Large parts, so that products stay large ones.
int64_t gpu_panel_columns(int64_t n, int64_t k);

/// Tokens of a chunk of the head on a GPU: each chunk reads and writes the whole gradient of the head's
/// matrix, so few large ones are wanted: 4,096 tokens, less where their logits would take more than 512 MiB.
int64_t gpu_head_chunk(int64_t vocabulary, int64_t element_bytes);

/// Partial sums of gradients that are summed over tokens: more would leave the sum over them a long one.
inline constexpr int64_t kMostGpuPartials = 256;
/// Rows of tokens that a partial sum takes at least.
inline constexpr int64_t kGpuPartialRows = 8;
/// Of `tokens`.
int64_t gpu_partials(int64_t tokens);

}  // namespace ftrun

#include "ops/attention/gpu.cuh"

// The kernels of this file list documents as separate sequences, for a library that computes lists
// of sequences (cudnn_attention.h). The device decides which document is in which list, because a
// captured step runs with different documents each time.
namespace ftrun::cuda {

namespace {

constexpr int kListThreads = 256, kTokensEach = 16;

/// Returns the inclusive prefix sum of `own` over the threads of the block. `sums` has room for
/// kListThreads numbers; its last number is the sum over all threads until the next call.
__device__ int sum_up_to(int own, int* sums) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // an earlier call may still read `sums`
  sums[thread] = own;
  __syncthreads();
  for (int step = 1; step < kListThreads; step *= 2) {
    const int before = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += before;
    __syncthreads();
  }
  return sums[thread];
}

/// DocumentShape holds the number of tokens, and the sizes of a row of tokens, of qkv and of the
/// result.
struct DocumentShape {
  int tokens, sequence_length, width, out_width;
};

/// Returns whether a token is the first one of its document.
__device__ bool begins_document(const int32_t* starts, const DocumentShape& shape, int token) {
  return starts[token] == token % shape.sequence_length || token % shape.sequence_length == 0;
}
/// Returns whether a token begins a document or continues the document of the token before it.
__device__ bool is_of_document(const int32_t* starts, const DocumentShape& shape, int token) {
  const int t = token % shape.sequence_length;
  return starts[token] == t || (t > 0 && starts[token] == starts[token - 1]);
}

__device__ void clear_lists(const DocumentLists& lists, const DocumentShape& shape) {
  for (int g = 0; g < lists.count; ++g) {
    const DocumentLists::DocumentGroup& group = lists.groups[g];
    for (auto i = static_cast<int>(threadIdx.x); i <= group.slots; i += kListThreads) {
      if (i < group.slots) group.lengths[i] = 0;
      group.qkv_offsets[i] = shape.tokens * shape.width;
      group.out_offsets[i] = shape.tokens * shape.out_width;
      group.token_offsets[i] = shape.tokens;
    }
  }
}

// Lists the documents; runs as one block. `first` receives the first token of each document.
__global__ void __launch_bounds__(kListThreads)
    fill_document_lists(const int32_t* starts, int32_t* first, DocumentLists lists,
                        DocumentShape shape) {
  __shared__ int sums[kListThreads];
  __shared__ int taken[kMaxGpuDocumentGroups], overflow[kMaxGpuDocumentGroups];
  __shared__ int irregular;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < lists.count) {
    taken[thread] = 0;
    overflow[thread] = shape.tokens;
  }
  if (thread == 0) irregular = 0;
  clear_lists(lists, shape);
  __syncthreads();
  int documents = 0;
  for (int base = 0; base < shape.tokens; base += kListThreads * kTokensEach) {
    const int begin = base + thread * kTokensEach, end = min(begin + kTokensEach, shape.tokens);
    int own = 0;
    for (int token = begin; token < end; ++token) {
      own += begins_document(starts, shape, token) ? 1 : 0;
      if (!is_of_document(starts, shape, token)) irregular = 1;
    }
    int place = documents + sum_up_to(own, sums) - own;
    documents += sums[kListThreads - 1];
    for (int token = begin; token < end; ++token)
      if (begins_document(starts, shape, token)) first[place++] = token;
  }
  __syncthreads();
  for (int base = 0; base < documents; base += kListThreads) {
    const int document = base + thread;
    const int begin = document < documents ? first[document] : 0;
    const int end = document + 1 < documents ? first[document + 1] : shape.tokens;
    const int length = document < documents ? end - begin : 0;
    for (int g = 0; g < lists.count; ++g) {
      const DocumentLists::DocumentGroup& group = lists.groups[g];
      const bool fits = length > 1 && length <= group.max_tokens &&
                        (g + 1 == lists.count || length > lists.groups[g + 1].max_tokens);
      const int fitting = sum_up_to(fits ? 1 : 0, sums);
      const int slot = taken[g] + fitting - 1;
      if (fits && slot == group.slots) overflow[g] = begin;
      if (fits && slot < group.slots) {
        group.lengths[slot] = length;
        group.qkv_offsets[slot] = begin * shape.width;
        group.out_offsets[slot] = begin * shape.out_width;
        group.token_offsets[slot] = begin;
      }
      __syncthreads();
      if (thread == 0) taken[g] += sums[kListThreads - 1];
    }
  }
  __syncthreads();
  int uncovered = irregular != 0 ? 0 : shape.tokens;
  for (int g = 0; g < lists.count; ++g) uncovered = min(uncovered, overflow[g]);
  if (thread == 0) *lists.uncovered = uncovered;
  for (int g = 0; g < lists.count; ++g)
    for (int i = thread; i < lists.groups[g].slots; i += kListThreads)
      if (lists.groups[g].token_offsets[i] >= uncovered) lists.groups[g].lengths[i] = 0;
}

/// Returns whether a token before `uncovered` is a document of one token.
__device__ bool is_single(const AttentionArgs<Bf16>& args, const int32_t* starts, int64_t token) {
  const auto t = static_cast<int>(token % args.sequence_length);
  if (token >= *args.uncovered || starts[token] != t) return false;
  return t + 1 == args.sequence_length || starts[token + 1] == t + 1;
}

constexpr int kSingleThreads = 128;

// Computes attention for documents of one token, one warp per token: the result is the token's
// value, the statistic is its score.
__global__ void __launch_bounds__(kSingleThreads)
    single_tokens(AttentionArgs<Bf16> args, const int32_t* starts) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kSingleThreads / 32) + threadIdx.x / 32;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens || !is_single(args, starts, token)) return;
  for (int head = 0; head < args.query_heads; ++head) {
    const Bf16 *const q = args.query(token, head), *const k = args.key(token, head / args.group);
    const Bf16* const v = args.value(token, head / args.group);
    float score = 0.0F;
    for (int i = lane; i < args.head_size; i += 32) {
      score += to_float(q[i]) * to_float(k[i]);
      args.a[args.out(token, head) + i] = v[i];
    }
    score = warp_sum(score);
    if (lane == 0) args.lse[head * args.tokens + token] = score * args.scale;
  }
}

// Computes the gradients for documents of one token, one warp per token. The score has no gradient.
// The gradient of the value is the sum of the gradients of the heads that share it.
__global__ void __launch_bounds__(kSingleThreads)
    single_token_gradients(AttentionArgs<Bf16> args, const int32_t* starts) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kSingleThreads / 32) + threadIdx.x / 32;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (token >= args.tokens || !is_single(args, starts, token)) return;
  Bf16* const row = args.dqkv + token * args.width;
  const int values = (args.query_heads + args.kv_heads) * args.head_size;
  for (int i = lane; i < values; i += 32) row[i] = from_float<Bf16>(0.0F);
  for (int kv_head = 0; kv_head < args.kv_heads; ++kv_head)
    for (int i = lane; i < args.head_size; i += 32) {
      float sum = 0.0F;
      for (int head = kv_head * args.group; head < (kv_head + 1) * args.group; ++head)
        sum += to_float(args.da[args.out(token, head) + i]);
      row[values + kv_head * args.head_size + i] = from_float<Bf16>(sum);
    }
}

Launch single_launch(const Attention& a, cudaStream_t stream) {
  return {blocks(divide_up(a.tokens, kSingleThreads / 32)), kSingleThreads, 0, stream};
}

}  // namespace

void list_documents(const Attention& a, const DocumentLists& lists, cudaStream_t stream) {
  const auto args = attention_args<Bf16>(a);
  const DocumentShape shape{static_cast<int>(a.tokens), args.sequence_length,
                            static_cast<int>(args.width), static_cast<int>(args.out_width)};
  launch({1, kListThreads, 0, stream}, fill_document_lists, a.starts, a.lowest, lists, shape);
}

void single_tokens_forward(const Attention& a, cudaStream_t stream) {
  launch(single_launch(a, stream), single_tokens, attention_args<Bf16>(a), a.starts);
}

void single_tokens_backward(const Attention& a, cudaStream_t stream) {
  launch(single_launch(a, stream), single_token_gradients, attention_args<Bf16>(a), a.starts);
}

}  // namespace ftrun::cuda

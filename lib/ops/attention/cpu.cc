#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_kernels.h"
#include "ops/attention/attention.h"
#include "ops/attention/workspace.h"

namespace ftrun::cpu {

namespace {

/// Attention holds the shapes of one attention and the offsets of its data in qkv rows and in the
/// workspace.
template <class S>
struct Attention {
  Attention(const OpCall& call, const Dims& qkv_dims, bool backward)
      : call(call),
        attrs(call.attrs<AttentionAttrs>()),
        tokens(qkv_dims[0]),
        layout(attention_workspace(tokens, attrs, sizeof(S), backward)),
        group(attrs.query_heads / attrs.kv_heads),
        width((attrs.query_heads + 2 * attrs.kv_heads) * attrs.head_size),
        tile(kAttentionBlock * layout.padded_head),
        lowest(call.workspace<int32_t>(layout.lowest)),
        first_block(call.workspace<int32_t>(layout.first_block)) {
    require(qkv_dims[1] == width && attrs.query_heads % attrs.kv_heads == 0,
            "the heads fill q, k and v, and groups of query heads share a key/value head");
    require(attrs.head_size % 2 == 0,
            "a head has an even size, as its bf16 elements are multiplied in pairs");
  }

  /// Returns a block's first token, counted in the whole batch.
  int64_t first_token(int64_t row, int64_t block) const {
    return row * attrs.sequence_length + block * kAttentionBlock;
  }
  /// Returns the number of tokens in a block.
  int64_t block_tokens(int64_t block) const {
    return std::min(kAttentionBlock, attrs.sequence_length - block * kAttentionBlock);
  }
  int64_t query_column(int64_t head) const { return head * attrs.head_size; }
  int64_t key_column(int64_t kv_head) const {
    return (attrs.query_heads + kv_head) * attrs.head_size;
  }
  int64_t value_column(int64_t kv_head) const { return key_column(attrs.kv_heads + kv_head); }
  int64_t key_tile(int64_t row, int64_t kv_head, int64_t block) const {
    return ((row * attrs.kv_heads + kv_head) * layout.blocks + block) * tile;
  }

  void compute_lowest_keys(const int32_t* starts);

  const OpCall& call;
  const AttentionAttrs& attrs;
  int64_t tokens;
  AttentionWorkspace layout;
  int64_t group, width, tile;
  int32_t* lowest;
  int32_t* first_block;
};

/// Computes the first key to which each token attends (the start of its document or of its window,
/// whichever is later), and the first key block that each query block needs. A token always attends
/// to itself, regardless of `starts`.
template <class S>
void Attention<S>::compute_lowest_keys(const int32_t* starts) {
  for (int64_t row = 0; row < layout.batch_rows; ++row) {
    for (int64_t t = 0; t < attrs.sequence_length; ++t) {
      const int64_t n = row * attrs.sequence_length + t;
      const int64_t window = attrs.window > 0 ? t - attrs.window + 1 : 0;
      lowest[n] =
          static_cast<int32_t>(std::clamp<int64_t>(std::max<int64_t>(starts[n], window), 0, t));
      int32_t& block = first_block[row * layout.blocks + t / kAttentionBlock];
      const auto needed = static_cast<int32_t>(lowest[n] / kAttentionBlock);
      block = t % kAttentionBlock == 0 ? needed : std::min(block, needed);
    }
  }
}

template <class S>
void pack_keys_and_values(const Attention<S>& a, const S* qkv) {
  const auto& vec = vector_kernels<S>();
  const int64_t heads = a.attrs.kv_heads, blocks = a.layout.blocks;
  auto* const keys = a.call.template workspace<Compute<S>>(a.layout.keys);
  auto* const values = a.call.template workspace<Compute<S>>(a.layout.values);
  parallel_tasks(a.layout.batch_rows * heads * blocks, [&](int64_t task) {
    const int64_t block = task % blocks, head = task / blocks % heads, row = task / blocks / heads;
    const S* const from = qkv + a.first_token(row, block) * a.width;
    const int64_t count = a.block_tokens(block), size = a.attrs.head_size,
                  padded = a.layout.padded_head;
    vec.pack_columns(from + a.key_column(head), a.width, count, size, padded, keys + task * a.tile);
    vec.pack_rows(from + a.value_column(head), a.width, count, size, padded,
                  values + task * a.tile);
  });
}

template <class S>
void forward_tile(const Attention<S>& a, const S* qkv, S* out, Stat<S>* lse, int64_t row,
                  int64_t head, int64_t block) {
  const int64_t first = a.first_token(row, block), padded = a.layout.padded_head;
  const int64_t out_stride = a.attrs.query_heads * a.attrs.head_size;
  const int64_t keys = a.key_tile(row, head / a.group, 0);
  vector_kernels<S>().attention_forward({
      .q = qkv + first * a.width + a.query_column(head),
      .qkv_stride = a.width,
      .keys_transposed = a.call.template workspace<Compute<S>>(a.layout.keys) + keys,
      .values = a.call.template workspace<Compute<S>>(a.layout.values) + keys,
      .head_size = a.attrs.head_size,
      .padded_head = padded,
      .scale = a.attrs.scale,
      .softcap = a.attrs.softcap,
      .block = block,
      .rows = a.block_tokens(block),
      .first_key_block = a.first_block[row * a.layout.blocks + block],
      .lowest = a.lowest + first,
      .out = out + first * out_stride + a.query_column(head),
      .out_stride = out_stride,
      .lse = lse + head * a.tokens + first,
      .scratch = static_cast<Compute<S>*>(
          thread_scratch(sizeof(Compute<S>) * static_cast<size_t>(2 * a.tile + kForwardScratch))),
  });
}

/// Backward holds the operands of the backward pass.
template <class S>
struct Backward : Attention<S> {
  explicit Backward(const OpCall& call)
      : Attention<S>(call, call.in_dims(1), true),
        da(call.in<S>(0)),
        qkv(call.in<S>(1)),
        a(call.in<S>(2)),
        lse(call.in<Stat<S>>(3)),
        dqkv(call.out<S>(0)),
        delta(call.workspace<Stat<S>>(this->layout.delta)),
        dq(call.workspace<Compute<S>>(this->layout.dq)),
        out_width(this->attrs.query_heads * this->attrs.head_size) {}

  Compute<S>* dq_tile(int64_t task_class, int64_t row, int64_t head, int64_t block) const {
    const int64_t rows = task_class * this->layout.batch_rows + row;
    return dq +
           ((rows * this->attrs.query_heads + head) * this->layout.blocks + block) * this->tile;
  }
  /// Returns the class of a key block. Blocks are distributed in the order 0 1 .. C-1 C-1 .. 1 0 0
  /// 1 .., so every class gets early and late blocks.
  int64_t task_class_of_block(int64_t block) const {
    const int64_t round = block / this->layout.classes, seat = block % this->layout.classes;
    return round % 2 == 0 ? seat : this->layout.classes - 1 - seat;
  }
  /// Returns whether one of the key blocks [first, last] belongs to the class. If so, the class has
  /// a sum for the dq tile.
  bool has_key_block(int64_t task_class, int64_t first, int64_t last) const {
    for (int64_t block = first; block <= last; ++block)
      if (task_class_of_block(block) == task_class) return true;
    return false;
  }

  const S* da;
  const S* qkv;
  const S* a;
  const Stat<S>* lse;
  S* dqkv;
  Stat<S>* delta;
  Compute<S>* dq;
  int64_t out_width;
};

/// Computes delta = da . a of each head and token.
template <class S>
void compute_delta(const Backward<S>& b) {
  const auto& vec = vector_kernels<S>();
  parallel_ranges(b.tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      for (int64_t head = 0; head < b.attrs.query_heads; ++head) {
        const int64_t at = n * b.out_width + b.query_column(head);
        b.delta[head * b.tokens + n] =
            static_cast<Stat<S>>(vec.dot(b.da + at, b.a + at, b.attrs.head_size));
      }
  });
}

/// KeyBlock is the scratch of one task of the backward pass: one key block, packed, and its
/// gradients.
template <class T>
struct KeyBlock {
  explicit KeyBlock(int64_t tile)
      : keys(static_cast<T*>(
            thread_scratch(sizeof(T) * static_cast<size_t>(7 * tile + kBackwardScratch)))),
        keys_transposed(keys + tile),
        values_transposed(keys + 2 * tile),
        dk(keys + 3 * tile),
        dv(keys + 4 * tile),
        tiles(keys + 5 * tile) {}
  T* keys;
  T* keys_transposed;
  T* values_transposed;
  T* dk;
  T* dv;
  T* tiles;
};

template <class S>
KeyBlock<Compute<S>> pack_key_block(const Backward<S>& b, int64_t row, int64_t kv_head,
                                    int64_t block) {
  const auto& vec = vector_kernels<S>();
  const KeyBlock<Compute<S>> packed(b.tile);
  const int64_t count = b.block_tokens(block), size = b.attrs.head_size;
  const int64_t padded = b.layout.padded_head;
  const S* const from = b.qkv + b.first_token(row, block) * b.width;
  const S* const keys = from + b.key_column(kv_head);
  vec.pack_rows(keys, b.width, count, size, padded, packed.keys);
  vec.pack_columns(keys, b.width, count, size, padded, packed.keys_transposed);
  vec.pack_columns(from + b.value_column(kv_head), b.width, count, size, padded,
                   packed.values_transposed);
  std::fill_n(packed.dk, 2 * b.tile, Compute<S>{0});  // dk and dv
  return packed;
}

template <class S>
void backward_tile(const Backward<S>& b, const KeyBlock<Compute<S>>& key, int64_t key_block,
                   int64_t row, int64_t head, int64_t block) {
  const int64_t first = b.first_token(row, block), task_class = b.task_class_of_block(key_block);
  const int64_t first_needed = b.first_block[row * b.layout.blocks + block];
  vector_kernels<S>().attention_backward({
      .q = b.qkv + first * b.width + b.query_column(head),
      .da = b.da + first * b.out_width + b.query_column(head),
      .qkv_stride = b.width,
      .da_stride = b.out_width,
      .keys_transposed = key.keys_transposed,
      .values_transposed = key.values_transposed,
      .keys = key.keys,
      .head_size = b.attrs.head_size,
      .padded_head = b.layout.padded_head,
      .scale = b.attrs.scale,
      .softcap = b.attrs.softcap,
      .query_block = block,
      .key_block = key_block,
      .rows = b.block_tokens(block),
      .lowest = b.lowest + first,
      .lse = b.lse + head * b.tokens + first,
      .delta = b.delta + head * b.tokens + first,
      .dq = b.dq_tile(task_class, row, head, block),
      .accumulate_dq = b.has_key_block(task_class, first_needed, key_block - 1),
      .dk = key.dk,
      .dv = key.dv,
      .scratch = key.tiles,
  });
}

/// Processes all queries of the heads that share a key/value head against one key block.
template <class S>
void backward_key_block(const Backward<S>& b, int64_t row, int64_t kv_head, int64_t key_block) {
  const KeyBlock<Compute<S>> key = pack_key_block(b, row, kv_head, key_block);
  for (int64_t block = key_block; block < b.layout.blocks; ++block) {
    if (b.first_block[row * b.layout.blocks + block] > key_block) continue;
    for (int64_t head = kv_head * b.group; head < (kv_head + 1) * b.group; ++head)
      backward_tile(b, key, key_block, row, head, block);
  }
  const auto& vec = vector_kernels<S>();
  const int64_t count = b.block_tokens(key_block), size = b.attrs.head_size;
  const int64_t padded = b.layout.padded_head;
  S* const out = b.dqkv + b.first_token(row, key_block) * b.width;
  vec.unpack_sum(key.dk, 1, 0, count, size, padded, b.attrs.scale, out + b.key_column(kv_head),
                 b.width);
  vec.unpack_sum(key.dv, 1, 0, count, size, padded, 1.0, out + b.value_column(kv_head), b.width);
}

/// Adds the sums of all classes for one query block, in order, to its dq.
template <class S>
void gather_dq(const Backward<S>& b, int64_t row, int64_t head, int64_t block) {
  const int64_t first_needed = b.first_block[row * b.layout.blocks + block];
  for (int64_t task_class = 0; task_class < b.layout.classes; ++task_class)
    if (!b.has_key_block(task_class, first_needed, block))
      std::fill_n(b.dq_tile(task_class, row, head, block), b.tile, Compute<S>{0});
  S* const out = b.dqkv + b.first_token(row, block) * b.width + b.query_column(head);
  vector_kernels<S>().unpack_sum(b.dq_tile(0, row, head, block), b.layout.classes,
                                 b.dq_tile(1, 0, 0, 0) - b.dq_tile(0, 0, 0, 0),
                                 b.block_tokens(block), b.attrs.head_size, b.layout.padded_head,
                                 b.attrs.scale, out, b.width);
}

}  // namespace

template <class S>
void attention(const OpCall& call) {
  Attention<S> a(call, call.in_dims(0), false);
  const S* const qkv = call.in<S>(0);
  S* const out = call.out<S>(0);
  Stat<S>* const lse = call.out<Stat<S>>(1);
  a.compute_lowest_keys(call.in<int32_t>(1));
  pack_keys_and_values(a, qkv);
  const int64_t rows = a.layout.batch_rows, heads = a.attrs.query_heads, blocks = a.layout.blocks;
  // Starts the longest tasks first.
  parallel_tasks(rows * heads * blocks, [&](int64_t task) {
    forward_tile(a, qkv, out, lse, task / heads % rows, task % heads,
                 blocks - 1 - task / heads / rows);
  });
}

/// Computes the gradients. A task processes one class of key blocks of one key/value head, so no
/// two tasks write the same numbers.
template <class S>
void attention_dgrad(const OpCall& call) {
  Backward<S> b(call);
  b.compute_lowest_keys(call.in<int32_t>(4));
  compute_delta(b);
  const int64_t heads = b.attrs.kv_heads, classes = b.layout.classes, blocks = b.layout.blocks;
  parallel_tasks(b.layout.batch_rows * heads * classes, [&](int64_t task) {
    for (int64_t block = 0; block < blocks; ++block)
      if (b.task_class_of_block(block) == task % classes)
        backward_key_block(b, task / classes / heads, task / classes % heads, block);
  });
  parallel_tasks(b.layout.batch_rows * b.attrs.query_heads * blocks, [&](int64_t task) {
    gather_dq(b, task / blocks / b.attrs.query_heads, task / blocks % b.attrs.query_heads,
              task % blocks);
  });
}

FTRUN_FOR_STORAGE_TYPES(attention)
FTRUN_FOR_STORAGE_TYPES(attention_dgrad)

}  // namespace ftrun::cpu

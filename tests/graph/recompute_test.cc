#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "blocks.h"
#include "graph/check_graph.h"
#include "graph/cost.h"
#include "graph/scratch.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"
#include "random_graph.h"
#include "sweep.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using namespace testing;

constexpr RecomputePolicy kNone{};
constexpr RecomputePolicy kSelective{RecomputeLevel::kSelective};
constexpr RecomputePolicy kFull{RecomputeLevel::kFull};

const RecomputePolicy kPolicies[] = {kNone,
                                     {RecomputeLevel::kSelective, 0.0},
                                     {RecomputeLevel::kSelective, 0.1},
                                     {RecomputeLevel::kSelective, 0.3},
                                     kSelective,
                                     {RecomputeLevel::kSelective, 1.0},
                                     kFull};

BlockShape smollm2(int64_t sequence_length) {
  return {.rows = 1,
          .sequence_length = sequence_length,
          .hidden = 576,
          .query_heads = 9,
          .kv_heads = 3,
          .head_size = 64,
          .feed_forward = 1536};
}

BlockShape llama2_7b(int64_t sequence_length) {
  return {.rows = 1,
          .sequence_length = sequence_length,
          .hidden = 4096,
          .query_heads = 32,
          .kv_heads = 32,
          .head_size = 128,
          .feed_forward = 11008};
}

BlockShape qwen25_7b(int64_t sequence_length) {
  return {.rows = 1,
          .sequence_length = sequence_length,
          .hidden = 3584,
          .query_heads = 28,
          .kv_heads = 4,
          .head_size = 128,
          .feed_forward = 18944,
          .biases = true};
}

/// Returns the shapes of families: Llama, Qwen2 (biases), Qwen3 (norms of q and k), Mistral
/// (window).
std::vector<BlockShape> family_shapes() {
  return {{},
          {.biases = true},
          {.qk_norm = true},
          {.biases = true, .qk_norm = true},
          {.rows = 1, .sequence_length = 8, .window = 3},
          smollm2(512),
          smollm2(8192),
          llama2_7b(2048),
          qwen25_7b(1024),
          {.rows = 1,
           .sequence_length = 1024,
           .hidden = 1024,
           .query_heads = 16,
           .kv_heads = 8,
           .head_size = 128,
           .feed_forward = 3072,
           .qk_norm = true},
          {.rows = 1,
           .sequence_length = 8192,
           .hidden = 4096,
           .query_heads = 32,
           .kv_heads = 8,
           .head_size = 128,
           .feed_forward = 14336,
           .window = 4096}};
}

/// Returns the block with a policy. Each block is built once for all cases, because choosing what
/// it saves takes most of the time.
const LayerGraph& recomputed_block(BlockShape shape, const RecomputePolicy& policy) {
  static std::deque<std::pair<BlockShape, LayerGraph>> made;
  shape.recompute = policy;
  for (const auto& [of, graph] : made)
    if (of == shape) return graph;
  return made.emplace_back(shape, testing::block_graph(shape)).second;
}

double sum_costs(const LayerGraph& g, const std::vector<Op>& list) {
  double sum = 0;
  for (const Op& op : list) sum += op_cost(g, op);
  return sum;
}

double sum_flops(const LayerGraph& g, const std::vector<Op>& list) {
  double sum = 0;
  for (const Op& op : list) sum += op_flops(g, op);
  return sum;
}

bool is_recomputed(const LayerGraph& g, const Op& op) {
  const std::string& name = g.at(op.out[0]).name;
  return name.size() > 6 && name.compare(name.size() - 6, 6, ".again") == 0;
}

/// Expressions writes every value as the text of the operations that compute it: gradients of
/// parameters are equal exactly if the same kernels process the same numbers. A residual norm is
/// treated as a function of the sum, however the sum is computed.
class Expressions {
 public:
  explicit Expressions(const LayerGraph& g) : g_(g) {
    for (size_t i = 0; i < g.values.size(); ++i) {
      const ValueRole role = g.values[i].role;
      if (role == ValueRole::kInput || role == ValueRole::kParam || role == ValueRole::kOutputGrad)
        hash_[static_cast<ValueId>(i)] = std::hash<std::string>{}(g.values[i].name);
    }
    for (const Op& op : g.forward) put(op);
    // Backward only has the values that forward leaves.
    std::erase_if(hash_, [&](const auto& entry) {
      const ValueRole role = g.at(entry.first).role;
      return role == ValueRole::kTemp || role == ValueRole::kOutput;
    });
    for (const Op& op : g.backward) put(op);
  }

  size_t at(ValueId id) const { return hash_.at(id); }

 private:
  static size_t mix(std::initializer_list<size_t> parts) {
    size_t h = 17;
    for (const size_t part : parts) h = (h ^ part) * 0x9E3779B97F4A7C15ULL + (h >> 29);
    return h;
  }

  void norm(ValueId x, ValueId w, ValueId y, ValueId rstd) {
    hash_[y] = mix({1, hash_.at(x), hash_.at(w)});
    hash_[rstd] = mix({2, hash_.at(x)});
  }

  void put(const Op& op) {
    if (op.kind == OpKind::kRmsNorm) return norm(op.in[0], op.in[1], op.out[0], op.out[1]);
    if (op.kind == OpKind::kAddRmsNorm) {
      hash_[op.out[0]] = mix({3, hash_.at(op.in[0]), hash_.at(op.in[1])});
      return norm(op.out[0], op.in[2], op.out[1], op.out[2]);
    }
    size_t h = 4 + static_cast<size_t>(op.kind);
    for (const ValueId in : op.in) h = mix({h, hash_.at(in)});
    for (size_t i = 0; i < op.out.size(); ++i) hash_[op.out[i]] = mix({h, i});
  }

  const LayerGraph& g_;
  std::map<ValueId, size_t> hash_;
};

/// Returns the gradients of the parameters and of the input, as expressions, in the order of the
/// values.
std::vector<size_t> gradient_expressions(const LayerGraph& g) {
  const Expressions expressions(g);
  std::vector<size_t> found;
  for (const ValueId id : g.values_with_role(ValueRole::kParam))
    found.push_back(expressions.at(g.at(id).grad));
  found.push_back(expressions.at(g.find(ValueRole::kInputGrad, Port::kHidden)));
  return found;
}

TEST_CASE("gradients of a block are the same functions of the same numbers under every policy") {
  for (const BlockShape& shape : family_shapes()) {
    const auto plain = gradient_expressions(recomputed_block(shape, kNone));
    CHECK(std::set<size_t>(plain.begin(), plain.end()).size() == plain.size());
    for (const RecomputePolicy& policy : kPolicies)
      CHECK(gradient_expressions(recomputed_block(shape, policy)) == plain);
  }
}

TEST_CASE(
    "gradients of random graphs are the same functions of the same numbers under every policy") {
  for (uint64_t seed = 0; seed < uint64_t{sweep_rounds(60)}; ++seed) {
    const auto made = [&](const RecomputePolicy& policy) {
      std::mt19937_64 random(seed);
      return random_graph(random, 1 + static_cast<int>(seed) % 12, policy);
    };
    const auto plain = gradient_expressions(made(kNone));
    for (const RecomputePolicy& policy : {kPolicies[2], kSelective, kFull}) {
      const LayerGraph g = made(policy);
      INFO(list_text(g, g.forward) << "backward\n" << list_text(g, g.backward));
      REQUIRE(gradient_expressions(g) == plain);
    }
  }
}

TEST_CASE(
    "lists of every family are well formed under every policy, also with deferred weight "
    "gradients") {
  for (const BlockShape& shape : family_shapes()) {
    for (const RecomputePolicy& policy : kPolicies) {
      LayerGraph g = recomputed_block(shape, policy);
      CHECK(bug_text([&] { check_graph(g); }) == "nothing");
      CHECK(g.input_grad.size() + g.weight_grad.size() == g.backward.size());
      g.backward = g.input_grad;
      g.backward.insert(g.backward.end(), g.weight_grad.begin(), g.weight_grad.end());
      CHECK(bug_text([&] { check_graph(g); }) == "nothing");
    }
  }
}

TEST_CASE("saved values are read, and recomputed values are read soon after") {
  for (const BlockShape& shape : family_shapes()) {
    for (const RecomputePolicy& policy : kPolicies) {
      const LayerGraph& g = recomputed_block(shape, policy);
      INFO(list_text(g, g.backward));
      const auto reads = [&](const Op& op, ValueId id) {
        return std::find(op.in.begin(), op.in.end(), id) != op.in.end();
      };
      for (const ValueId id : g.values_with_role(ValueRole::kSaved))
        CHECK(std::any_of(g.backward.begin(), g.backward.end(),
                          [&](const Op& op) { return reads(op, id); }));
      for (size_t i = 0; i < g.backward.size(); ++i) {
        if (!is_recomputed(g, g.backward[i])) continue;
        // The first reader comes before any gradient that does not read the value.
        size_t next = i + 1;
        const auto read_by = [&](const Op& op) {
          return std::any_of(g.backward[i].out.begin(), g.backward[i].out.end(),
                             [&](ValueId id) { return reads(op, id); });
        };
        while (is_recomputed(g, g.backward[next]) && !read_by(g.backward[next])) ++next;
        CHECK(read_by(g.backward[next]));
      }
    }
  }
}

TEST_CASE("full recompute saves nothing and repeats all but what backward never reads") {
  const LayerGraph& g = recomputed_block({}, kFull);
  CHECK(saved_text(g).empty());
  CHECK(plan_saved(g).bytes == 0);
  CHECK(
      list_text(g, g.backward) ==
      "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
      "linear n1.out.again:[8,16] qkv:[32,16] -> qkv.out.again:[8,32]\n"
      "rope qkv.out.again:[8,32] rope:[8,4] -> rope.out.again:[8,32]\n"
      "attention rope.out.again:[8,32] starts:[8] -> attention.out.again:[8,16] "
      "attention.lse.again:[4,8]\n"
      "linear attention.out.again:[8,16] o:[16,16] -> o.out.again:[8,16]\n"
      "add_rms_norm x:[8,16] o.out.again:[8,16] n2:[16] -> n2.sum.again:[8,16] n2.out.again:[8,16] "
      "n2.rstd.again:[8]\n"
      "linear n2.out.again:[8,16] gu:[48,16] -> gu.out.again:[8,48]\n"
      "gated_activation gu.out.again:[8,48] -> gated.out.again:[8,24]\n"
      "linear_wgrad d_sum:[8,16] gated.out.again:[8,24] -> d_down:[16,24]\n"
      "linear_dgrad d_sum:[8,16] down:[16,24] -> d_gated.out:[8,24]\n"
      "gated_activation_dgrad d_gated.out:[8,24] gu.out.again:[8,48] -> d_gu.out:[8,48]\n"
      "rms_norm n2.sum.again:[8,16] n2:[16] -> n2.out.again:[8,16] n2.rstd.again:[8]\n"
      "linear_wgrad d_gu.out:[8,48] n2.out.again:[8,16] -> d_gu:[48,16]\n"
      "linear_dgrad d_gu.out:[8,48] gu:[48,16] -> d_n2.out:[8,16]\n"
      "rms_norm_wgrad d_n2.out:[8,16] n2.sum.again:[8,16] n2.rstd.again:[8] -> d_n2:[16]\n"
      "rms_norm_dgrad d_n2.out:[8,16] n2.sum.again:[8,16] n2.rstd.again:[8] n2:[16] d_sum:[8,16] "
      "-> "
      "d_n2.sum:[8,16]\n"
      "linear_wgrad d_n2.sum:[8,16] attention.out.again:[8,16] -> d_o:[16,16]\n"
      "linear_dgrad d_n2.sum:[8,16] o:[16,16] -> d_attention.out:[8,16]\n"
      "attention_dgrad d_attention.out:[8,16] rope.out.again:[8,32] attention.out.again:[8,16] "
      "attention.lse.again:[4,8] starts:[8] -> d_rope.out:[8,32]\n"
      "rope_dgrad d_rope.out:[8,32] rope:[8,4] -> d_qkv.out:[8,32]\n"
      "rms_norm x:[8,16] n1:[16] -> n1.out.again:[8,16] n1.rstd.again:[8]\n"
      "linear_wgrad d_qkv.out:[8,32] n1.out.again:[8,16] -> d_qkv:[32,16]\n"
      "linear_dgrad d_qkv.out:[8,32] qkv:[32,16] -> d_n1.out:[8,16]\n"
      "rms_norm_wgrad d_n1.out:[8,16] x:[8,16] n1.rstd.again:[8] -> d_n1:[16]\n"
      "rms_norm_dgrad d_n1.out:[8,16] x:[8,16] n1.rstd.again:[8] n1:[16] d_n2.sum:[8,16] -> "
      "d_x:[8,16]\n");
}

TEST_CASE(
    "matrix multiplications and attention are repeated at most once, the down projection never") {
  for (const BlockShape& shape : family_shapes()) {
    for (const RecomputePolicy& policy : kPolicies) {
      const LayerGraph& g = recomputed_block(shape, policy);
      std::multiset<std::string> again;
      for (const Op& op : g.backward)
        if (is_recomputed(g, op) && !is_cheap(op.kind)) again.insert(g.at(op.out[0]).name);
      CHECK(again.size() == std::set<std::string>(again.begin(), again.end()).size());
      CHECK(again.count("down.out.again") == 0);
    }
  }
}

struct BlockBytes {
  int64_t saved;
  int64_t forward_scratch;
  int64_t backward_scratch;
  bool operator==(const BlockBytes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const BlockBytes& bytes) {
  return out << bytes.saved << ' ' << bytes.forward_scratch << ' ' << bytes.backward_scratch;
}

/// Returns the bytes that a layer keeps between forward and backward, and those that its lists need
/// while they run.
BlockBytes block_bytes_of(const BlockShape& shape, const RecomputePolicy& policy) {
  const LayerGraph& g = recomputed_block(shape, policy);
  return {plan_saved(g).bytes, plan_scratch(g, g.forward).bytes, plan_scratch(g, g.backward).bytes};
}

TEST_CASE("a layer of SmolLM2-135M keeps the expected bytes besides its input, in fp32") {
  // The numbers per token: rotated q, k, v 960; attention 576; lse 9; sum 576; two rstd; gate and
  // up 3072.
  const int64_t token = 4;
  for (const int64_t tokens : {512, 1024})
    CHECK(block_bytes_of(smollm2(tokens), kNone) ==
          BlockBytes{tokens * 5195 * token, tokens * 2112 * token, tokens * 4608 * token});
  // Attention over 512 tokens is cheap compared with projections of 576, so only q, k and v are
  // kept.
  CHECK(block_bytes_of(smollm2(512), kSelective) ==
        BlockBytes{512 * 960 * token, 512 * 5184 * token, 512 * 5769 * token});
  // Attention over 1024 tokens is expensive, so its result, the residual sum and the rstd of their
  // norm are kept too.
  CHECK(block_bytes_of(smollm2(1024), kSelective) ==
        BlockBytes{1024 * 1162 * token, 1024 * 4608 * token, 1024 * 5386 * token + 64});
  for (const int64_t tokens : {512, 1024})
    CHECK(block_bytes_of(smollm2(tokens), kFull) ==
          BlockBytes{0, tokens * 5184 * token, tokens * 6729 * token});
}

TEST_CASE("scratch of backward is as small as what is alive at once") {
  for (const BlockShape& shape : {smollm2(512), smollm2(1024), llama2_7b(2048), qwen25_7b(1024)}) {
    for (const RecomputePolicy& policy : kPolicies) {
      const LayerGraph& g = recomputed_block(shape, policy);
      std::map<ValueId, std::pair<size_t, size_t>> life;
      for (size_t i = 0; i < g.backward.size(); ++i) {
        const Op& op = g.backward[i];
        for (const auto* ids : {&op.in, &op.out})
          for (const ValueId id : *ids)
            if (lives_in_list(g.at(id))) life.try_emplace(id, i, i).first->second.second = i;
        if (op.workspace >= 0) life[op.workspace] = {i, i};
      }
      int64_t most = 0;
      for (size_t i = 0; i < g.backward.size(); ++i) {
        const Op& op = g.backward[i];
        int64_t live = 0;
        for (const auto& [id, span] : life)
          if (span.first <= i && i <= span.second) live += g.at(id).bytes();
        const ValueId place = in_place_input(op);
        if (place >= 0 && lives_in_list(g.at(place))) live -= g.at(op.out[0]).bytes();
        most = std::max(most, live);
      }
      const int64_t bytes = plan_scratch(g, g.backward).bytes;
      CHECK(bytes >= most);
      CHECK(static_cast<double>(bytes) <= 1.0001 * static_cast<double>(most));
    }
  }
}

TEST_CASE("recomputed operations add to the cost of the list, and to nothing else") {
  for (const BlockShape& shape : family_shapes()) {
    const LayerGraph& plain = recomputed_block(shape, kNone);
    for (const RecomputePolicy& policy : kPolicies) {
      const LayerGraph& g = recomputed_block(shape, policy);
      double again = 0;
      double plain_again = 0;
      for (const Op& op : g.backward) again += is_recomputed(g, op) ? op_flops(g, op) : 0.0;
      for (const Op& op : plain.backward)
        plain_again += is_recomputed(plain, op) ? op_flops(plain, op) : 0.0;
      CHECK(sum_flops(g, g.backward) - again ==
            Approx(sum_flops(plain, plain.backward) - plain_again).epsilon(1e-12));
      CHECK(sum_flops(g, g.forward) == sum_flops(plain, plain.forward));
    }
  }
}

TEST_CASE("selective recompute stays within its budget, and more budget never keeps more",
          "[long]") {
  for (const BlockShape& shape : family_shapes()) {
    const LayerGraph& plain = recomputed_block(shape, kNone);
    const double forward = sum_costs(plain, plain.forward);
    int64_t before = plan_saved(plain).bytes;
    for (int step = 0; step <= 20; ++step) {
      const double budget = 0.05 * step;
      const LayerGraph& g = recomputed_block(shape, {RecomputeLevel::kSelective, budget});
      CHECK(sum_costs(g, g.backward) - sum_costs(plain, plain.backward) <=
            budget * forward * (1 + 1e-12));
      CHECK(plan_saved(g).bytes <= before);
      before = plan_saved(g).bytes;
    }
  }
}

TEST_CASE("the default budget recomputes gate and up in every family, at less than full's cost") {
  for (const BlockShape& shape :
       {smollm2(256), smollm2(512), smollm2(1024), smollm2(8192), llama2_7b(2048), llama2_7b(8192),
        qwen25_7b(256), qwen25_7b(8192)}) {
    const LayerGraph& plain = recomputed_block(shape, kNone);
    const LayerGraph& selective = recomputed_block(shape, kSelective);
    const LayerGraph& full = recomputed_block(shape, kFull);
    CHECK(selective.at(value_named(selective, "gu.out")).role == ValueRole::kTemp);
    CHECK(10 * plan_saved(selective).bytes <= 3 * plan_saved(plain).bytes);
    CHECK(sum_costs(selective, selective.backward) < sum_costs(full, full.backward));
    // Running the whole forward list again would cost more than full recompute does.
    CHECK(sum_costs(full, full.backward) - sum_costs(plain, plain.backward) <
          sum_costs(full, full.forward));
  }
}

TEST_CASE(
    "attention is recomputed if rows are short compared with the hidden size, not if they are "
    "long") {
  const auto attention_again = [](const BlockShape& shape) {
    const LayerGraph& g = recomputed_block(shape, kSelective);
    return g.at(value_named(g, "attention.out")).role != ValueRole::kSaved;
  };
  CHECK(attention_again(smollm2(256)));
  CHECK_FALSE(attention_again(smollm2(4096)));
  CHECK_FALSE(attention_again(smollm2(8192)));
  CHECK(attention_again(llama2_7b(2048)));
}

TEST_CASE(
    "rotated q, k, v are recomputed from what the norms of q and k keep anyway, at the least "
    "cost") {
  const LayerGraph& g = recomputed_block({.rows = 1,
                                          .sequence_length = 1024,
                                          .hidden = 1024,
                                          .query_heads = 16,
                                          .kv_heads = 8,
                                          .head_size = 128,
                                          .feed_forward = 3072,
                                          .qk_norm = true},
                                         {RecomputeLevel::kSelective, 0.1});
  CHECK(g.at(value_named(g, "qkv.out")).role == ValueRole::kSaved);
  CHECK(g.at(value_named(g, "rope.out")).role == ValueRole::kTemp);
}

TEST_CASE("a head's loss is never recomputed") {
  for (const RecomputePolicy& policy : kPolicies) {
    GraphBuilder b("head", 8, 4);
    const ValueId x = b.input(Port::kHidden, DType::kF32, {8, 16}, "x");
    const ValueId labels = b.input(Port::kLabels, DType::kI32, {8}, "labels");
    const ValueId y = ops::rms_norm(b, x, b.param("n", {16}), {1e-5});
    ops::linear_cross_entropy(b, y, b.param("w", {32, 16}), labels, {});
    const LayerGraph g = b.finish(true, policy);
    for (const Op& op : g.backward) CHECK(op.kind != OpKind::kLinearCrossEntropy);
    CHECK(g.at(value_named(g, "d_n.out")).role == ValueRole::kSaved);
  }
}

}  // namespace
}  // namespace ftrun

#include <cmath>

#include "each_matmul_library.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "optimizers/optimizer_config.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

// Results are the bytes of an operation's outputs; all operations promise the same bits for any
// number of threads.
using Results = std::vector<std::vector<std::byte>>;

void run_norms(OperationRunner& runner, Results& results) {
  const std::vector<int64_t> dims{333, 100};
  const ValueId x = runner.input(random_array(dims, 1)), w = runner.input(random_array({100}, 2));
  const ValueId dy = runner.input(random_array(dims, 3)), y = runner.output(dims),
                rstd = runner.statistic({333});
  const ValueId dx = runner.output(dims), dw = runner.output({100}), db = runner.output({100});
  runner.run(OpKind::kRmsNorm, {x, w}, {y, rstd}, NormAttrs{});
  runner.run(OpKind::kRmsNormDgrad, {dy, x, rstd, w, y}, {dx}, NormAttrs{});
  runner.run(OpKind::kRmsNormWgrad, {dy, x, rstd}, {dw});
  runner.run(OpKind::kBiasWgrad, {dy}, {db});
  for (const ValueId id : {y, rstd, dx, dw, db}) results.push_back(runner.bits(id));
  const ValueId mean = runner.statistic({333});
  runner.run(OpKind::kLayerNorm, {x, w, w}, {y, mean, rstd}, NormAttrs{});
  runner.run(OpKind::kLayerNormDgrad, {dy, x, mean, rstd, w, y}, {dx});
  runner.run(OpKind::kLayerNormWgrad, {dy, x, mean, rstd}, {dw, db});
  for (const ValueId id : {y, mean, rstd, dx, dw, db}) results.push_back(runner.bits(id));
}

void run_heads(OperationRunner& runner, Results& results) {
  const HeadAttrs heads{4, 2, 24, 1e-6};
  const std::vector<int64_t> dims{333, 8 * 24};
  const ValueId qkv = runner.input(random_array(dims, 1)), dy = runner.input(random_array(dims, 2));
  const ValueId wq = runner.input(random_array({24}, 3)), wk = runner.input(random_array({24}, 4));
  const ValueId table = runner.input(random_array({333, 24}, 5), DType::kF32);
  const ValueId y = runner.output(dims), rstd = runner.statistic({333, 6}),
                dqkv = runner.output(dims);
  const ValueId dwq = runner.output({24}), dwk = runner.output({24}), turned = runner.output(dims);
  runner.run(OpKind::kQkNorm, {qkv, wq, wk}, {y, rstd}, heads);
  runner.run(OpKind::kQkNormDgrad, {dy, qkv, rstd, wq, wk}, {dqkv}, heads);
  runner.run(OpKind::kQkNormWgrad, {dy, qkv, rstd}, {dwq, dwk}, heads);
  runner.run(OpKind::kRope, {qkv, table}, {turned}, RopeAttrs{heads});
  for (const ValueId id : {y, dqkv, dwq, dwk, turned}) results.push_back(runner.bits(id));
}

void run_attention(OperationRunner& runner, Results& results) {
  const AttentionAttrs attrs{6, 2, 32, 450, 1.0 / std::sqrt(32.0), 300};
  const std::vector<int64_t> dims{900, 10 * 32};
  std::vector<int32_t> starts(900, 0);
  for (size_t n = 700; n < 900; ++n) starts[n] = 240;
  const ValueId qkv = runner.input(random_array(dims, 1)), first = runner.ints(starts);
  const ValueId da = runner.input(random_array({900, 6 * 32}, 2)), a = runner.output({900, 6 * 32});
  const ValueId lse = runner.statistic({6, 900}), dqkv = runner.output(dims);
  runner.run(OpKind::kAttention, {qkv, first}, {a, lse}, attrs);
  runner.run(OpKind::kAttentionDgrad, {da, qkv, a, lse, first}, {dqkv}, attrs);
  for (const ValueId id : {a, lse, dqkv}) results.push_back(runner.bits(id));
}

void run_pointwise(OperationRunner& runner, Results& results) {
  const ValueId gu = runner.input(random_array({101, 2 * 77}, 1)),
                ds = runner.input(random_array({101, 77}, 2));
  const ValueId s = runner.output({101, 77}), dgu = runner.output({101, 2 * 77}),
                sum = runner.output({101, 77});
  std::vector<int32_t> ids(101);
  for (size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int32_t>(n * n % 13);
  const ValueId tokens = runner.ints(ids), dtable = runner.output({13, 77});
  runner.run(OpKind::kGatedActivation, {gu}, {s}, ActivationAttrs{});
  runner.run(OpKind::kGatedActivationDgrad, {ds, gu}, {dgu}, ActivationAttrs{});
  runner.run(OpKind::kAdd, {s, ds}, {sum});
  runner.run(OpKind::kEmbedWgrad, {tokens, ds}, {dtable});
  for (const ValueId id : {s, dgu, sum, dtable}) results.push_back(runner.bits(id));
  runner.run(OpKind::kActivation, {ds}, {s}, ActivationAttrs{Activation::kGelu});
  runner.run(OpKind::kActivationDgrad, {sum, ds}, {ds}, ActivationAttrs{Activation::kGelu});
  for (const ValueId id : {s, ds}) results.push_back(runner.bits(id));
}

void run_matmul(OperationRunner& runner, Results& results) {
  const ValueId x = runner.input(random_array({333, 100}, 1)),
                w = runner.input(random_array({177, 100}, 2));
  const ValueId dy = runner.input(random_array({333, 177}, 3));
  const ValueId y = runner.output({333, 177}), dx = runner.output({333, 100}),
                dw = runner.output({177, 100});
  runner.run(OpKind::kLinear, {x, w}, {y});
  runner.run(OpKind::kLinearDgrad, {dy, w}, {dx});
  runner.run(OpKind::kLinearWgrad, {dy, x}, {dw});
  for (const ValueId id : {y, dx, dw}) results.push_back(runner.bits(id));
}

void run_head(OperationRunner& runner, Results& results) {
  std::vector<int32_t> labels(60);
  for (size_t n = 0; n < labels.size(); ++n)
    labels[n] = n % 7 == 0 ? -1 : static_cast<int32_t>(n * 37 % 404);
  const ValueId x = runner.input(random_array({60, 90}, 1)),
                w = runner.input(random_array({202, 90}, 2));
  const ValueId tokens = runner.ints(labels), loss = runner.input({{2}, {0.0, 0.0}}, DType::kF64);
  const ValueId logits = runner.statistic({50, 202}), own = runner.statistic({50, 2}),
                label_logit = runner.statistic({50});
  const ValueId dx = runner.output({60, 90}), dw = runner.output({202, 90}),
                all = runner.statistic({100, 2});
  const VocabularyAttrs attrs{true, 2, 0, 0};
  runner.run(OpKind::kVocabularyLogits, {x, w, tokens}, {logits, own, label_logit}, attrs);
  for (const ValueId id : {logits, own, label_logit}) results.push_back(runner.bits(id));
  runner.copy_twice(own, all);
  runner.run(OpKind::kVocabularyCrossEntropy, {x, w, tokens, logits, all, label_logit},
             {loss, dx, dw, logits}, attrs);
  for (const ValueId id : {loss, dw, logits}) results.push_back(runner.bits(id));
}

void run_optimizer(Results& results) {
  const auto floats = [](uint64_t seed) {
    const Array array = random_array({200003}, seed);
    return std::vector<float>(array.data.begin(), array.data.end());
  };
  std::vector<float> p = floats(1), m = floats(2), v(200003, 0.5F);
  const std::vector<float> g = floats(3);
  StepScalars scalars;
  scalars.learning_rate = 1e-2F;
  const FlatUpdate update{.parameters = p.data(),
                          .gradients = g.data(),
                          .states = {m.data(), v.data()},
                          .count = 200003};
  optimizer_update(update, {.weight_decay = 0.1}, scalars);
  scalars.update = 2;
  optimizer_update(update, {.type = OptimizerType::kSgd, .momentum = 0.9}, scalars);
  const auto* const bytes = reinterpret_cast<const std::byte*>(p.data());
  results.emplace_back(bytes, bytes + p.size() * sizeof(float));
}

Results all_results(DType dtype, int threads) {
  set_kernel_threads(threads);
  Results results;
  for (const auto run :
       {run_norms, run_heads, run_attention, run_pointwise, run_matmul, run_head}) {
    OperationRunner runner(dtype);
    run(runner, results);
  }
  run_optimizer(results);
  return results;
}

TEST_CASE("results of CPU kernels have the same bits for 1, 2 and 3 threads") {
  for_each_library_and_dtype([](DType dtype) {
    CAPTURE(dtype_name(dtype));
    const Results one = all_results(dtype, 1);
    REQUIRE(all_results(dtype, 2) == one);
    REQUIRE(all_results(dtype, 3) == one);
    set_kernel_threads(2);
  });
}

}  // namespace
}  // namespace ftrun::testing

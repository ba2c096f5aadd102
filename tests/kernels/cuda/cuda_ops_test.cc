#include <cmath>

#include "base/error.h"
#include "gpu_operation_cases.h"
#include "ops/activation/activation.h"
#include "ops/activation/activation_traits.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/embedding/embedding.h"
#include "ops/head_norm/head_norm.h"
#include "ops/heads.h"
#include "ops/kinds.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/softcap/softcap.h"
#include "ops/whole_qk_norm/whole_qk_norm.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

using Dims = std::vector<int64_t>;

Operand random_operand(Dims dims, uint64_t seed) {
  return Operand::activation(random_array(std::move(dims), seed));
}

/// Returns output `i` of a case on the CPU, for use as an input of the next case.
Array cpu_output(const OperationCase& c, size_t i) {
  return run_on_cpu(c, {DType::kF32, DType::kF32})[i];
}

struct Shape {
  int64_t tokens, width;
};
// The widths are whole vectors of 16 bytes, or not.
const std::vector<Shape> kShapes{{1, 1}, {3, 5}, {65, 37}, {130, 576}, {7, 1024}};

/// Requires that the gradient overwrites its memory, and with `accumulate` is added to it.
void require_gradient(OperationCase c) {
  require_agreement(c);
  for (size_t i = 0; i < c.out.size(); ++i)
    if (c.out[i].type == Operand::Type::kGradient)
      c.out[i] = Operand::gradient(random_array(c.out[i].dims, 77 + i));
  c.accumulate = true;
  require_agreement(c);
}

TEST_CASE("cuda: embedding gathers rows, and its gradient adds up repeated tokens") {
  for (const int64_t width : {1, 70, 128}) {
    std::vector<int32_t> tokens{3, 0, 10, 3, 3, 7};
    require_agreement({OpKind::kEmbed,
                       NoAttrs{},
                       {Operand::tokens(tokens), random_operand({99, width}, 1)},
                       {Operand::out({6, width})}});
    // There are more equal tokens than the kernel sorts at a time, and they fall into several
    // ranges of rows.
    for (int i = 0; i < (width == 70 ? 5000 : 500); ++i)
      tokens.push_back(i % 3 == 0 ? 42 : static_cast<int32_t>(i * 31 % 99));
    const auto count = static_cast<int64_t>(tokens.size());
    require_gradient({OpKind::kEmbedWgrad,
                      NoAttrs{},
                      {Operand::tokens(tokens), random_operand({count, width}, 2)},
                      {Operand::gradient(Dims{99, width})}});
  }
}

TEST_CASE(
    "cuda: the row of an ignored token gets no gradient, in a whole table and in a part of one") {
  for (const int64_t first : {0, 40})
    for (const bool accumulate : {false, true}) {
      const std::vector<int32_t> tokens{3, 45, 45, 0, 119, 45, 3, 50};
      OperationCase c{OpKind::kEmbedWgrad,
                      EmbeddingRowsAttrs{first, 120, 45},
                      {Operand::tokens(tokens), random_operand({8, 24}, 2)},
                      {Operand::gradient(random_array({first == 0 ? 120 : 40, 24}, 3))}};
      c.accumulate = accumulate;
      require_agreement(c);
      const std::vector<double> before =
          accumulate ? c.out[0].content->data : std::vector<double>(c.out[0].content->data.size());
      const std::vector<double> found = run_on_gpu(c, kDTypes[0])[0].data;
      for (size_t i = 0; i < 24; ++i) {
        const size_t at = static_cast<size_t>(45 - first) * 24 + i;
        REQUIRE(static_cast<float>(found[at]) == static_cast<float>(before[at]));
      }
    }
}

TEST_CASE("cuda: a token outside the table gives NaN, and no gradient") {
  const OperationCase c{OpKind::kEmbed,
                        NoAttrs{},
                        {Operand::tokens({1, -1, 11}), random_operand({11, 8}, 1)},
                        {Operand::out({3, 8})}};
  const Array x = run_on_gpu(c, kDTypes[0])[0];
  REQUIRE(std::isfinite(x.data[0]));
  REQUIRE(std::isnan(x.data[8]));
  REQUIRE(std::isnan(x.data[23]));
}

TEST_CASE(
    "cuda: a table of some rows gives zeros for other rows' tokens and gets no gradient from "
    "them") {
  const std::vector<int32_t> tokens{3, 109, 60, 50, 3, 111, 64};
  for (const int64_t first : {0, 40, 80}) {
    const EmbeddingRowsAttrs rows{first, 120};
    require_agreement({OpKind::kEmbed,
                       rows,
                       {Operand::tokens(tokens), random_operand({40, 24}, 1)},
                       {Operand::out({7, 24})}});
    require_agreement({OpKind::kEmbedWgrad,
                       rows,
                       {Operand::tokens(tokens), random_operand({7, 24}, 2)},
                       {Operand::gradient(Dims{40, 24})}});
  }
}

TEST_CASE("cuda: a bias that another rank adds is left out of the matrix multiplication") {
  for (const bool adds : {true, false})
    require_agreement(
        {OpKind::kLinear,
         LinearAttrs{2, adds},
         {random_operand({9, 8}, 1), random_operand({16, 8}, 2), random_operand({16}, 3)},
         {Operand::out({9, 16})}});
}

TEST_CASE("cuda: rms_norm and its gradients agree with the CPU") {
  for (const Shape& s : kShapes) {
    const Dims dims{s.tokens, s.width};
    const NormAttrs attrs{1e-5, s.tokens % 2 == 1 ? 1.0 : 0.0};
    const OperationCase forward{OpKind::kRmsNorm,
                                attrs,
                                {random_operand(dims, 1), random_operand({s.width}, 2)},
                                {Operand::out(dims), Operand::statistic({s.tokens})}};
    require_agreement(forward);
    const Operand rstd = Operand::floats(cpu_output(forward, 1));
    require_gradient({OpKind::kRmsNormWgrad,
                      NoAttrs{},
                      {random_operand(dims, 3), random_operand(dims, 1), rstd},
                      {Operand::gradient(Dims{s.width})}});
    if (s.width == 1) continue;  // the gradient is a difference of equals: rounding errors
    OperationCase gradient{
        OpKind::kRmsNormDgrad,
        attrs,
        {random_operand(dims, 3), random_operand(dims, 1), rstd, random_operand({s.width}, 2)},
        {Operand::out(dims)}};
    require_agreement(gradient);
    gradient.in.push_back(random_operand(dims, 4));
    require_agreement(gradient);
  }
}

TEST_CASE("cuda: add_rms_norm agrees with the CPU") {
  for (const Shape& s : kShapes) {
    const Dims dims{s.tokens, s.width};
    require_agreement(
        {OpKind::kAddRmsNorm,
         NormAttrs{1e-6},
         {random_operand(dims, 1), random_operand(dims, 2), random_operand({s.width}, 3)},
         {Operand::out(dims), Operand::out(dims), Operand::statistic({s.tokens})}},
        2e-2);
  }
}

TEST_CASE(
    "cuda: layer_norm and its gradients agree with the CPU, with and without weight and bias") {
  for (const Shape& s : kShapes) {
    if (s.width == 1) continue;  // the variance is 0
    const Dims dims{s.tokens, s.width};
    for (const size_t params : {0, 1, 2}) {
      OperationCase forward{
          OpKind::kLayerNorm,
          NormAttrs{1e-5},
          {random_operand(dims, 1)},
          {Operand::out(dims), Operand::statistic({s.tokens}), Operand::statistic({s.tokens})}};
      for (size_t i = 0; i < params; ++i) forward.in.push_back(random_operand({s.width}, 2 + i));
      require_agreement(forward);
      const std::vector<Operand> read{random_operand(dims, 5), random_operand(dims, 1),
                                      Operand::floats(cpu_output(forward, 1)),
                                      Operand::floats(cpu_output(forward, 2))};
      OperationCase input{OpKind::kLayerNormDgrad, NoAttrs{}, read, {Operand::out(dims)}};
      if (params > 0) input.in.push_back(random_operand({s.width}, 2));
      require_agreement(input);
      if (params == 0) continue;
      input.in.push_back(random_operand(dims, 6));
      require_agreement(input);
      OperationCase weight{OpKind::kLayerNormWgrad, NoAttrs{}, read, {}};
      for (size_t i = 0; i < params; ++i) weight.out.push_back(Operand::gradient(Dims{s.width}));
      require_gradient(weight);
    }
  }
}

TEST_CASE("cuda: qk_norm and its gradients agree with the CPU") {
  for (const HeadAttrs heads :
       {HeadAttrs{1, 1, 2, 1e-6}, HeadAttrs{3, 1, 10, 1e-6, 1.0}, HeadAttrs{4, 2, 64, 1e-5}})
    for (const int64_t tokens : {1, 70}) {
      const int64_t size = heads.head_size, all = heads.query_heads + heads.kv_heads;
      const Dims dims{tokens, (all + heads.kv_heads) * size};
      const OperationCase forward{
          OpKind::kQkNorm,
          heads,
          {random_operand(dims, 1), random_operand({size}, 2), random_operand({size}, 3)},
          {Operand::out(dims), Operand::statistic({tokens, all})}};
      require_agreement(forward);
      const Operand rstd = Operand::floats(cpu_output(forward, 1));
      require_agreement({OpKind::kQkNormDgrad,
                         heads,
                         {random_operand(dims, 4), random_operand(dims, 1), rstd,
                          random_operand({size}, 2), random_operand({size}, 3)},
                         {Operand::out(dims)}});
      require_gradient({OpKind::kQkNormWgrad,
                        heads,
                        {random_operand(dims, 4), random_operand(dims, 1), rstd},
                        {Operand::gradient(Dims{size}), Operand::gradient(Dims{size})}});
    }
}

TEST_CASE("cuda: head_norm and its gradients agree with the CPU") {
  for (const HeadAttrs heads :
       {HeadAttrs{1, 1, 2, 1e-5}, HeadAttrs{3, 1, 10, 1e-5}, HeadAttrs{4, 2, 64, 1e-6}})
    for (const int64_t tokens : {1, 70}) {
      const int64_t q = heads.query_heads * heads.head_size, k = heads.kv_heads * heads.head_size;
      const Dims dims{tokens, q + 2 * k}, statistic{tokens, heads.query_heads + heads.kv_heads};
      const Operand qkv = random_operand(dims, 1), wq = random_operand({q}, 2),
                    wk = random_operand({k}, 3), dy = random_operand(dims, 4);
      const OperationCase forward{
          OpKind::kHeadNorm,
          heads,
          {qkv, wq, wk},
          {Operand::out(dims), Operand::statistic(statistic), Operand::statistic(statistic)}};
      require_agreement(forward);
      const Operand mean = Operand::floats(cpu_output(forward, 1)),
                    rstd = Operand::floats(cpu_output(forward, 2));
      require_agreement(
          {OpKind::kHeadNormDgrad, heads, {dy, qkv, mean, rstd, wq, wk}, {Operand::out(dims)}});
      require_gradient({OpKind::kHeadNormWgrad,
                        heads,
                        {dy, qkv, mean, rstd},
                        {Operand::gradient(Dims{q}), Operand::gradient(Dims{k})}});
    }
}

TEST_CASE("cuda: norms over all query and all key heads and their gradients agree with the CPU") {
  for (const WholeQkNormAttrs& attrs :
       {WholeQkNormAttrs{{1, 1, 2, 1e-6}}, WholeQkNormAttrs{{3, 1, 10, 1e-6}, 2},
        WholeQkNormAttrs{{8, 2, 64, 1e-5}, 3}})
    for (const int64_t tokens : {1, 70}) {
      const int64_t q = attrs.query_elements(), k = attrs.key_elements();
      const Dims dims{tokens, q + 2 * k};
      const Operand qkv = random_operand(dims, 1), wq = random_operand({q}, 2),
                    wk = random_operand({k}, 3), dy = random_operand(dims, 4);
      const OperationCase squares{
          OpKind::kQkDots, attrs, {qkv, qkv}, {Operand::statistic({tokens, 2})}};
      require_agreement(squares);
      const OperationCase forward{OpKind::kWholeQkNorm,
                                  attrs,
                                  {qkv, Operand::floats(cpu_output(squares, 0)), wq, wk},
                                  {Operand::out(dims), Operand::statistic({tokens, 2})}};
      require_agreement(forward);
      const OperationCase dots{
          OpKind::kQkDots, attrs, {dy, qkv, wq, wk}, {Operand::statistic({tokens, 2})}};
      require_agreement(dots, 1e-3);
      const Operand rstd = Operand::floats(cpu_output(forward, 1));
      require_agreement({OpKind::kWholeQkNormDgrad,
                         attrs,
                         {dy, qkv, rstd, Operand::floats(cpu_output(dots, 0)), wq, wk},
                         {Operand::out(dims)}});
      require_gradient({OpKind::kWholeQkNormWgrad,
                        attrs,
                        {dy, qkv, rstd},
                        {Operand::gradient(Dims{q}), Operand::gradient(Dims{k})}});
    }
}

TEST_CASE("cuda: linear with and without bias and its gradients agree with the CPU") {
  struct Size {
    int64_t tokens, outputs, inputs;
  };
  for (const Size& s : {Size{1, 1, 1}, Size{7, 5, 3}, Size{65, 33, 17}, Size{130, 48, 96}}) {
    const Operand x = random_operand({s.tokens, s.inputs}, 1),
                  w = random_operand({s.outputs, s.inputs}, 2),
                  dy = random_operand({s.tokens, s.outputs}, 4);
    require_agreement({OpKind::kLinear, NoAttrs{}, {x, w}, {Operand::out({s.tokens, s.outputs})}});
    require_agreement({OpKind::kLinear,
                       NoAttrs{},
                       {x, w, random_operand({s.outputs}, 3)},
                       {Operand::out({s.tokens, s.outputs})}});
    require_agreement(
        {OpKind::kLinearDgrad, NoAttrs{}, {dy, w}, {Operand::out({s.tokens, s.inputs})}});
    require_gradient(
        {OpKind::kLinearWgrad, NoAttrs{}, {dy, x}, {Operand::gradient(Dims{s.outputs, s.inputs})}});
    require_gradient({OpKind::kBiasWgrad, NoAttrs{}, {dy}, {Operand::gradient(Dims{s.outputs})}});
  }
}

TEST_CASE(
    "cuda: linear and its gradient with quantized weights agree with the CPU on the numbers that "
    "the "
    "weights represent") {
  for (const QuantizedFormat& format : {QuantizedFormat{QuantizationType::kNf4, 64, true, false},
                                        QuantizedFormat{QuantizationType::kNf4, 64, true, true},
                                        QuantizedFormat{QuantizationType::kNf4, 256, false, false},
                                        QuantizedFormat{QuantizationType::kInt8, 64, false, false}})
    for (const int64_t inputs : {36, 192}) {
      if (format.type == QuantizationType::kInt8 && inputs % format.block != 0) continue;
      const Operand x = random_operand({65, inputs}, 1),
                    w = Operand::weight(random_array({33, inputs}, 2), format),
                    dy = random_operand({65, 33}, 4);
      require_agreement({OpKind::kLinear, NoAttrs{}, {x, w}, {Operand::out({65, 33})}});
      require_agreement(
          {OpKind::kLinear, NoAttrs{}, {x, w, random_operand({33}, 3)}, {Operand::out({65, 33})}});
      require_agreement({OpKind::kLinearDgrad, NoAttrs{}, {dy, w}, {Operand::out({65, inputs})}});
      require_agreement({OpKind::kLinearDgrad,
                         NoAttrs{},
                         {dy, w, random_operand({65, inputs}, 5)},
                         {Operand::out({65, inputs})}},
                        2e-2);
    }
}

TEST_CASE(
    "cuda: low-rank adapters of parts of a linear layer and their gradients agree with the CPU") {
  const LoraAttrs attrs{{{0, 1.7}, {40, 0.5}, {56, 1.0}}};
  const Operand y = random_operand({130, 72}, 1), h = random_operand({130, 16}, 2),
                dy = random_operand({130, 72}, 3), x = random_operand({130, 48}, 4);
  const std::vector<Operand> up{random_operand({40, 8}, 5), random_operand({16, 5}, 6),
                                random_operand({16, 3}, 7)};
  require_agreement(
      {OpKind::kLoraUp, attrs, {y, h, up[0], up[1], up[2]}, {Operand::out({130, 72})}}, 2e-2);
  require_agreement(
      {OpKind::kLoraUpDgrad, attrs, {dy, up[0], up[1], up[2]}, {Operand::out({130, 16})}}, 2e-2);
  require_gradient({OpKind::kLoraUpWgrad,
                    attrs,
                    {dy, h},
                    {Operand::gradient(Dims{40, 8}), Operand::gradient(Dims{16, 5}),
                     Operand::gradient(Dims{16, 3})}});
  require_agreement({OpKind::kLinearDgrad,
                     NoAttrs{},
                     {dy, random_operand({72, 48}, 8), x},
                     {Operand::out({130, 48})}},
                    2e-2);
}

TEST_CASE(
    "cuda: lengths of a weight's rows with adapters agree with the CPU, also of quantized "
    "weights") {
  const LoraAttrs attrs{{{0, 1.7}, {40, 0.5}, {56, 1.0}}};
  for (const int64_t inputs : {7, 192}) {
    const Operand down = random_operand({16, inputs}, 2);
    const std::vector<Operand> up{random_operand({40, 8}, 5), random_operand({16, 5}, 6),
                                  random_operand({16, 3}, 7)};
    std::vector<Operand> weights{random_operand({72, inputs}, 1)};
    if (inputs == 192)
      for (const QuantizedFormat& format :
           {QuantizedFormat{QuantizationType::kNf4, 64, true, true},
            QuantizedFormat{QuantizationType::kInt8, 64, false, false}})
        weights.push_back(Operand::weight(random_array({72, inputs}, 1), format));
    for (const Operand& w : weights)
      require_agreement({OpKind::kDoraSquaredLengths,
                         attrs,
                         {w, down, up[0], up[1], up[2]},
                         {Operand::statistic({72})}},
                        1e-5);
  }
  // There are more rows than a panel has.
  require_agreement({OpKind::kDoraSquaredLengths,
                     LoraAttrs{{{2, 0.5}}},
                     {random_operand({90, 65'537}, 1), random_operand({1, 65'537}, 2),
                      random_operand({80, 1}, 3)},
                     {Operand::statistic({80})}},
                    1e-5);
}

TEST_CASE(
    "cuda: columns scaled by magnitudes and their gradients agree with the CPU, also in place") {
  struct ScaleCase {
    int64_t tokens, outputs;
    std::vector<DoraAttrs::ScaledColumns> parts;
  };
  for (const ScaleCase& s : {ScaleCase{1, 1, {{0, 1}}}, ScaleCase{7, 20, {{4, 9}}},
                             ScaleCase{600, 48, {{0, 16}, {32, 16}}},
                             ScaleCase{130, 600, {{0, 300}, {300, 20}, {340, 260}}}}) {
    int64_t rows = 0;
    for (const DoraAttrs::ScaledColumns& part : s.parts) rows += part.columns;
    Array squares = random_array({rows}, 2);
    for (double& square : squares.data) square = square * square + 0.25;
    if (rows > 1) squares.data[1] = 0.0;  // a row whose elements are all 0
    const Dims dims{s.tokens, s.outputs};
    const Operand z = random_operand(dims, 1), q = Operand::floats(squares),
                  m = Operand::floats(random_array({rows}, 3)),
                  bias = random_operand({s.outputs}, 4), dy = random_operand(dims, 5);
    DoraAttrs attrs{s.parts};
    require_agreement({OpKind::kDoraScale, attrs, {z, q, m}, {Operand::out(dims)}});
    OperationCase biased{OpKind::kDoraScale, attrs, {z, q, m, bias}, {Operand::out(dims)}};
    require_agreement(biased);
    const auto apart = bits_on_gpu(biased, kDTypes[2]);
    biased.in_place = 0;
    REQUIRE((bits_on_gpu(biased, kDTypes[2]) == apart));
    attrs.adds_bias = false;
    require_agreement({OpKind::kDoraScale, attrs, {z, q, m, bias}, {Operand::out(dims)}});
    require_agreement({OpKind::kDoraScaleDgrad, attrs, {dy, q, m}, {Operand::out(dims)}});
    require_gradient({OpKind::kDoraScaleWgrad, attrs, {dy, z, q}, {Operand::gradient(Dims{rows})}});
  }
}

TEST_CASE("cuda: dropout has the CPU's mask, also in place") {
  for (const Shape& s : kShapes)
    for (const int64_t first_column : {0, 24, 4090}) {
      OperationCase c{OpKind::kDropout,
                      DropoutAttrs{0.3, 2, first_column},
                      {random_operand({s.tokens, s.width}, 1)},
                      {Operand::out({s.tokens, s.width})}};
      for (const auto& [rest, padding] : {std::pair{false, 0}, {true, 0}, {false, 2}}) {
        c.attrs = DropoutAttrs{0.3, 2, first_column, rest, 1, 5, padding};
        c.in_place.reset();
        require_agreement(c);
        const auto apart = bits_on_gpu(c, kDTypes[2]);
        c.in_place = 0;
        REQUIRE((bits_on_gpu(c, kDTypes[2]) == apart));
      }
    }
}

TEST_CASE("cuda: rope and its gradient agree with the CPU, also in place") {
  struct RotatedHeads {
    HeadAttrs heads;
    int64_t elements;
  };
  for (const auto& [heads, turning] :
       {RotatedHeads{{1, 1, 2, 0}, 2}, RotatedHeads{{3, 1, 10, 0}, 10},
        RotatedHeads{{9, 3, 64, 0}, 64}, RotatedHeads{{3, 1, 10, 0}, 4},
        RotatedHeads{{9, 3, 64, 0}, 16}, RotatedHeads{{2, 1, 20, 0}, 16}}) {
    const int64_t tokens = 20;
    const Dims dims{tokens, (heads.query_heads + 2 * heads.kv_heads) * heads.head_size};
    RopeTableAttrs attrs;
    for (int64_t i = 0; i < turning / 2; ++i)
      attrs.angles.push_back({std::pow(1e4, -0.1 * i), i % 2 == 0 ? 1.5 : 1.0});
    std::vector<int32_t> positions;
    for (int32_t n = 0; n < tokens; ++n) positions.push_back(n * 997);
    const OperationCase table{OpKind::kRopeTable,
                              attrs,
                              {Operand::tokens(positions)},
                              {Operand::statistic({tokens, turning})}};
    require_agreement(table);
    const Operand rope = Operand::floats(cpu_output(table, 0));
    for (const OpKind kind : {OpKind::kRope, OpKind::kRopeDgrad}) {
      OperationCase c{
          kind, RopeAttrs{heads}, {random_operand(dims, 1), rope}, {Operand::out(dims)}};
      require_agreement(c);
      const auto apart = bits_on_gpu(c, kDTypes[2]);
      c.in_place = 0;
      REQUIRE((bits_on_gpu(c, kDTypes[2]) == apart));
      c.in_place = -1;
      c.attrs = RopeAttrs{heads, turning / 4, turning / 4};
      require_agreement(c);
      c.attrs = RopeAttrs{.heads = heads, .pairs = true};
      require_agreement(c);
      const auto neighbors = bits_on_gpu(c, kDTypes[2]);
      c.in_place = 0;
      REQUIRE((bits_on_gpu(c, kDTypes[2]) == neighbors));
    }
  }
}

TEST_CASE("cuda: softcap and its gradient agree with the CPU") {
  for (const Shape& s : kShapes) {
    const Dims dims{s.tokens, s.width};
    require_agreement(
        {OpKind::kSoftcap, SoftcapAttrs{0.75}, {random_operand(dims, 1)}, {Operand::out(dims)}});
    require_agreement({OpKind::kSoftcapDgrad,
                       SoftcapAttrs{4.0},
                       {random_operand(dims, 1), random_operand(dims, 2)},
                       {Operand::out(dims)}});
  }
}

TEST_CASE("cuda: scale agrees with the CPU, also in place") {
  for (const Shape& s : kShapes) {
    OperationCase c{OpKind::kScale,
                    ScaleAttrs{-0.22},
                    {random_operand({s.tokens, s.width}, 1)},
                    {Operand::out({s.tokens, s.width})}};
    require_agreement(c);
    const auto apart = bits_on_gpu(c, kDTypes[2]);
    c.in_place = 0;
    REQUIRE((bits_on_gpu(c, kDTypes[2]) == apart));
  }
}

TEST_CASE("cuda: activations and their gradients agree with the CPU, also in place") {
  for (const Activation kind : kActivations)
    for (const Shape& s : kShapes) {
      const Dims dims{s.tokens, s.width}, wide{s.tokens, 2 * s.width};
      Array values = random_array(wide, 1), x = random_array(dims, 2);
      for (Array* const each : {&values, &x})
        for (double& v : each->data) v *= 6.0;
      // A single number from the tail of a gelu has few significant bits in 16 bits, so it is made
      // positive.
      if (s.width == 1) x.data[0] = std::abs(x.data[0]);
      const ActivationAttrs attrs{kind};
      const Operand gu = Operand::activation(values), in = Operand::activation(x);
      require_agreement({OpKind::kActivation, attrs, {in}, {Operand::out(dims)}});
      require_agreement({OpKind::kGatedActivation, attrs, {gu}, {Operand::out(dims)}});
      require_agreement({OpKind::kGatedActivationDgrad,
                         attrs,
                         {random_operand(dims, 3), gu},
                         {Operand::out(wide)}});
      OperationCase gradient{
          OpKind::kActivationDgrad, attrs, {random_operand(dims, 3), in}, {Operand::out(dims)}};
      require_agreement(gradient);
      const auto apart = bits_on_gpu(gradient, kDTypes[0]);
      gradient.in_place = 1;
      REQUIRE((bits_on_gpu(gradient, kDTypes[0]) == apart));
    }
}

TEST_CASE("cuda: gated silu, add and their gradients agree with the CPU, also in place") {
  for (const Shape& s : kShapes) {
    Array gate_up = random_array({s.tokens, 2 * s.width}, 1);
    for (double& v : gate_up.data) v *= 8.0;
    const Operand gu = Operand::activation(gate_up);
    require_agreement(
        {OpKind::kGatedActivation, ActivationAttrs{}, {gu}, {Operand::out({s.tokens, s.width})}});
    OperationCase gradient{OpKind::kGatedActivationDgrad,
                           ActivationAttrs{},
                           {random_operand({s.tokens, s.width}, 2), gu},
                           {Operand::out(gate_up.dims)}};
    require_agreement(gradient);
    const auto apart = bits_on_gpu(gradient, kDTypes[0]);
    gradient.in_place = 1;
    REQUIRE((bits_on_gpu(gradient, kDTypes[0]) == apart));
    OperationCase sum{
        OpKind::kAdd,
        NoAttrs{},
        {random_operand({s.tokens, s.width}, 1), random_operand({s.tokens, s.width}, 2)},
        {Operand::out({s.tokens, s.width})}};
    require_agreement(sum);
    const auto sum_apart = bits_on_gpu(sum, kDTypes[2]);
    sum.in_place = 0;
    REQUIRE((bits_on_gpu(sum, kDTypes[2]) == sum_apart));
  }
}

struct AttentionCase {
  AttentionAttrs attrs;
  int64_t rows;
  std::vector<int64_t> documents;
};

AttentionAttrs attention_attrs(int64_t query_heads, int64_t kv_heads, int64_t head_size,
                               int64_t sequence_length, int64_t window = 0, double softcap = 0) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_size));
  return {query_heads, kv_heads, head_size, sequence_length, scale, window, softcap};
}

const std::vector<AttentionCase> kAttentionCases{
    {attention_attrs(1, 1, 2, 1), 1, {0}},
    {attention_attrs(2, 1, 6, 5), 3, {0, 2}},
    {attention_attrs(3, 3, 16, 64), 1, {0}},
    {attention_attrs(4, 2, 20, 65), 2, {0}},
    {attention_attrs(9, 3, 64, 40), 1, {0, 7}},
    {attention_attrs(3, 1, 64, 200), 2, {0, 1, 70, 130, 199}},
    {attention_attrs(2, 1, 32, 300, 17), 1, {0}},
    {attention_attrs(1, 1, 48, 330, 100), 1, {0, 64, 65, 250}},
    {attention_attrs(2, 1, 128, 260), 1, {0, 150}},
    {attention_attrs(2, 1, 136, 130), 1, {0}},
    {attention_attrs(2, 2, 256, 70), 1, {0, 30}},
    {attention_attrs(4, 2, 8, 130, 70), 1, {0, 128}},
    {attention_attrs(4, 2, 20, 65, 0, 1.5), 1, {0, 30}},
    {attention_attrs(2, 1, 64, 130, 90, 0.75), 1, {0}},
};

std::vector<int32_t> starts_of(const AttentionCase& c) {
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t t = 0; t < c.attrs.sequence_length; ++t) {
      int64_t start = 0;
      for (const int64_t document : c.documents)
        if (document + row <= t) start = document == 0 ? 0 : document + row;
      starts.push_back(static_cast<int32_t>(start));
    }
  return starts;
}

/// Returns the forward and the backward case; the backward case gets the CPU's forward outputs as
/// inputs.
std::pair<OperationCase, OperationCase> attention_cases(const AttentionCase& c) {
  const AttentionAttrs& a = c.attrs;
  const int64_t tokens = c.rows * a.sequence_length;
  const Dims qkv{tokens, (a.query_heads + 2 * a.kv_heads) * a.head_size},
      out{tokens, a.query_heads * a.head_size};
  const Operand starts = Operand::tokens(starts_of(c));
  OperationCase forward{OpKind::kAttention,
                        a,
                        {random_operand(qkv, 1), starts},
                        {Operand::out(out), Operand::statistic({a.query_heads, tokens})}};
  OperationCase backward{
      OpKind::kAttentionDgrad,
      a,
      {random_operand(out, 2), random_operand(qkv, 1), Operand::activation(cpu_output(forward, 0)),
       Operand::floats(cpu_output(forward, 1)), starts},
      {Operand::out(qkv)}};
  return {std::move(forward), std::move(backward)};
}

TEST_CASE("cuda: both gradients of a norm in one pass have the bits of each alone") {
  struct Size {
    int64_t tokens, width;
  };
  // The sizes cover a warp per row, a block per row, rows too long for registers, blocks without
  // tokens, and odd widths.
  for (const Size& s : {Size{33, 24}, Size{1, 8}, Size{2049, 16}, Size{9, 576}, Size{17, 2048},
                        Size{5, 4104}, Size{3, 9216}, Size{7, 13}}) {
    CAPTURE(s.tokens, s.width);
    const Dims dims{s.tokens, s.width};
    Array rstd = random_array({s.tokens}, 5);
    for (double& each : rstd.data) each = 1.0 + each * each;
    std::vector<Operand> in{random_operand(dims, 1), random_operand(dims, 2), Operand::floats(rstd),
                            random_operand({s.width}, 3)};
    for (const DTypes dtypes : kDTypes) {
      const Operand dw = Operand::gradient(Dims{s.width}),
                    more = Operand::gradient(random_array({s.width}, 9));
      REQUIRE(norm_gradient_bits(in, dtypes, true, dw) ==
              norm_gradient_bits(in, dtypes, false, dw));
      in.push_back(random_operand(dims, 4));
      REQUIRE(norm_gradient_bits(in, dtypes, true, more) ==
              norm_gradient_bits(in, dtypes, false, more));
      in.pop_back();
    }
  }
}

TEST_CASE("cuda: attention with grouped heads, windows and packed documents agrees with the CPU") {
  for (const AttentionCase& c : kAttentionCases) {
    CAPTURE(c.attrs.query_heads, c.attrs.head_size, c.attrs.sequence_length, c.attrs.window,
            c.rows);
    const auto [forward, backward] = attention_cases(c);
    require_agreement(forward);
    require_agreement(backward, 2e-2);
  }
}

TEST_CASE("cuda: a NaN in a key reaches the tokens that attend to it and no earlier block") {
  Array qkv = random_array({192, 48}, 1);
  qkv.data[150 * 48 + 16] = NAN;
  const OperationCase c{OpKind::kAttention,
                        attention_attrs(1, 1, 16, 192),
                        {Operand::activation(qkv), Operand::tokens(std::vector<int32_t>(192, 0))},
                        {Operand::out({192, 16}), Operand::statistic({1, 192})}};
  for (const DTypes dtypes : {kDTypes[0], kDTypes[2]}) {
    const std::vector<Array> out = run_on_gpu(c, dtypes);
    REQUIRE(std::isfinite(out[0].data[127 * 16]));
    REQUIRE(std::isfinite(out[1].data[127]));
    REQUIRE(std::isnan(out[0].data[191 * 16]));
    REQUIRE(std::isnan(out[1].data[150]));
  }
}

OperationCase loss_case(int64_t tokens, int64_t hidden, int64_t vocabulary, int64_t chunk,
                        int masked_every, bool gradients, double softcap = 0) {
  std::vector<int32_t> labels;
  for (int64_t n = 0; n < tokens; ++n)
    labels.push_back(masked_every > 0 && n % masked_every == 0
                         ? -100
                         : static_cast<int32_t>(n * 7919 % vocabulary));
  OperationCase c{OpKind::kLinearCrossEntropy,
                  CrossEntropyAttrs{gradients, chunk, softcap},
                  {random_operand({tokens, hidden}, 1), random_operand({vocabulary, hidden}, 2),
                   Operand::tokens(labels)},
                  {Operand::loss(10.0, 3.0)}};
  if (!gradients) return c;
  c.out.push_back(Operand::out({tokens, hidden}));
  c.out.push_back(Operand::gradient(Dims{vocabulary, hidden}));
  return c;
}

TEST_CASE(
    "cuda: linear_cross_entropy without the gradient of a frozen matrix agrees with the CPU") {
  OperationCase c = loss_case(40, 24, 101, 16, 3, true);
  c.out.pop_back();
  require_agreement(c, 2e-2);
}

/// Adds a bias to a head and, if the case has gradients, the gradient of the bias.
OperationCase with_bias(OperationCase c, int64_t vocabulary) {
  c.in.push_back(random_operand({vocabulary}, 6));
  if (c.out.size() > 1) c.out.insert(c.out.end() - 1, Operand::gradient(Dims{vocabulary}));
  return c;
}

TEST_CASE("cuda: a bias of linear_cross_entropy and its gradient agree with the CPU") {
  // The rows of the logits are copied in whole vectors or element by element.
  for (const int64_t vocabulary : {101, 257, 384})
    for (const bool gradients : {false, true}) {
      OperationCase c = with_bias(loss_case(40, 24, vocabulary, 16, 3, gradients), vocabulary);
      require_agreement(c, 2e-2);
      if (!gradients) continue;
      c.out[2] = Operand::gradient(random_array({vocabulary}, 9));
      c.out[3] = Operand::gradient(random_array({vocabulary, 24}, 9));
      c.accumulate = true;
      require_agreement(c, 2e-2);
      c.out.pop_back();
      require_agreement(c, 2e-2);
    }
}

TEST_CASE("cuda: linear_cross_entropy and both gradients agree with the CPU") {
  struct Size {
    int64_t tokens, hidden, vocabulary, chunk;
    int masked_every;
  };
  for (const Size& s : {Size{1, 1, 2, 4, 0}, Size{7, 5, 9, 3, 0}, Size{40, 24, 101, 16, 3},
                        Size{33, 64, 1000, 256, 5}, Size{6, 8, 24, 2, 1}, Size{20, 16, 257, 8, 4},
                        Size{9, 40, 191, 16, 0}}) {
    CAPTURE(s.tokens, s.vocabulary, s.chunk);
    require_agreement(loss_case(s.tokens, s.hidden, s.vocabulary, s.chunk, s.masked_every, false));
    if (s.vocabulary == 2) continue;  // the gradients nearly cancel
    for (const bool gradients : {false, true})
      require_agreement(
          loss_case(s.tokens, s.hidden, s.vocabulary, s.chunk, s.masked_every, gradients, 1.5),
          2e-2);
    OperationCase c = loss_case(s.tokens, s.hidden, s.vocabulary, s.chunk, s.masked_every, true);
    require_agreement(c, 2e-2);
    c.out[2] = Operand::gradient(random_array({s.vocabulary, s.hidden}, 9));
    c.accumulate = true;
    require_agreement(c, 2e-2);
  }
}

TEST_CASE(
    "cuda: masked tokens get gradients of exactly 0, and a label outside the vocabulary a NaN") {
  OperationCase c = loss_case(40, 24, 104, 16, 3, true);
  for (const DTypes dtypes : kDTypes) {
    const std::vector<Array> out = run_on_gpu(c, dtypes);
    for (size_t n = 0; n < 40; ++n)
      for (size_t i = 0; i < 24; ++i) REQUIRE((out[1].data[n * 24 + i] == 0.0) == (n % 3 == 0));
  }
  c.in[2].ints[5] = 104;
  REQUIRE(std::isnan(run_on_gpu(c, kDTypes[0])[0].data[0]));
}

/// Returns the two operations of a head for one chunk of tokens, on one of three ranks. The other
/// ranks' statistics are random numbers.
std::pair<OperationCase, OperationCase> split_loss_cases(int64_t tokens, int64_t hidden,
                                                         int64_t vocabulary, int masked_every,
                                                         int64_t rank, bool gradients) {
  constexpr int64_t kRanks = 3, kFirst = 2;
  const int64_t chunk = tokens - kFirst;
  const OperationCase whole =
      loss_case(tokens, hidden, kRanks * vocabulary, 8, masked_every, gradients);
  const VocabularyAttrs attrs{gradients, kRanks, rank, kFirst};
  const std::vector<Operand> given{whole.in[0], random_operand({vocabulary, hidden}, 2),
                                   whole.in[2]};
  OperationCase logits{OpKind::kVocabularyLogits,
                       attrs,
                       given,
                       {Operand::statistic({chunk, vocabulary}), Operand::statistic({chunk, 2}),
                        Operand::statistic({chunk})}};
  Array statistics = random_array({kRanks * chunk, 2}, 4);
  for (size_t i = 1; i < statistics.data.size(); i += 2)
    statistics.data[i] = 2.0 + statistics.data[i];
  OperationCase loss{OpKind::kVocabularyCrossEntropy, attrs, given, {Operand::loss(10.0, 3.0)}};
  loss.in.push_back(Operand::floats(random_array({chunk, vocabulary}, 3)));
  loss.in.push_back(Operand::floats(statistics));
  loss.in.push_back(Operand::floats(random_array({chunk}, 5)));
  if (!gradients) return {logits, loss};
  loss.out.push_back(Operand::activation(
      {{tokens, hidden}, std::vector<double>(static_cast<size_t>(tokens * hidden), 0.5)}));
  loss.out.push_back(Operand::gradient(random_array({vocabulary, hidden}, 9)));
  return {logits, loss};
}

/// Runs the two operations of a split head for all ranks on the GPU, and passes the statistics of
/// all ranks to the second. Returns loss and dx, summed over ranks, then dw and the gradient of the
/// bias, concatenated over ranks.
std::vector<Array> split_head_on_gpu(const std::vector<OperationCase>& firsts,
                                     const std::vector<OperationCase>& seconds, DTypes dtypes) {
  std::vector<std::vector<Array>> made;
  Array statistics{{0, 2}, {}};
  for (const OperationCase& c : firsts) {
    made.push_back(run_on_gpu(c, dtypes));
    statistics.dims[0] += made.back()[1].dims[0];
    statistics.data.insert(statistics.data.end(), made.back()[1].data.begin(),
                           made.back()[1].data.end());
  }
  std::vector<Array> sum;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    OperationCase c = seconds[rank];
    c.in[3] = Operand::floats(made[rank][0]);
    c.in[4] = Operand::floats(statistics);
    c.in[5] = Operand::floats(made[rank][2]);
    c.changed_input = 3;
    std::vector<Array> out = run_on_gpu(c, dtypes);
    if (rank == 0) {
      sum = out;
      continue;
    }
    sum[0] = array_sum(sum[0], out[0]);
    if (c.out.size() == 1) continue;  // the case has no gradients
    sum[1] = array_sum(sum[1], out[1]);
    for (size_t i = 2; i < out.size(); ++i) {
      sum[i].data.insert(sum[i].data.end(), out[i].data.begin(), out[i].data.end());
      sum[i].dims[0] += out[i].dims[0];
    }
  }
  return sum;
}

TEST_CASE(
    "cuda: a token whose loss is not finite is never predicted, whatever the sign of its NaN") {
  for (const double value :
       {std::copysign(NAN, 1.0), std::copysign(NAN, -1.0), HUGE_VAL, -HUGE_VAL})
    for (const DTypes dtypes : kDTypes) {
      CAPTURE(value, dtype_name(dtypes.activation));
      // Token 0 is predicted correctly. The hidden value of token 1 is NaN, or makes the logit of
      // its label infinite.
      const Operand x = Operand::activation({{2, 1}, {1.0, value}}),
                    labels = Operand::tokens({1, 1});
      const OperationCase whole{OpKind::kLinearCrossEntropy,
                                CrossEntropyAttrs{false, 8},
                                {x, Operand::activation({{4, 1}, {0.5, 2.0, -1.0, 1.0}}), labels},
                                {Operand::loss(0.0, 0.0)}};
      std::vector<OperationCase> firsts, seconds;
      for (const int64_t rank : {0, 1}) {
        const VocabularyAttrs attrs{false, 2, rank, 0};
        const Array rows = rank == 0 ? Array{{2, 1}, {0.5, 2.0}} : Array{{2, 1}, {-1.0, 1.0}};
        const std::vector<Operand> given{x, Operand::activation(rows), labels};
        firsts.push_back(
            {OpKind::kVocabularyLogits,
             attrs,
             given,
             {Operand::statistic({2, 2}), Operand::statistic({2, 2}), Operand::statistic({2})}});
        seconds.push_back(
            {OpKind::kVocabularyCrossEntropy, attrs, given, {Operand::loss(0.0, 0.0)}});
        seconds.back().in.resize(6);
      }
      for (const Array& loss :
           {run_on_gpu(whole, dtypes)[0], split_head_on_gpu(firsts, seconds, dtypes)[0]}) {
        REQUIRE(std::isnan(loss.data[0]));
        REQUIRE(loss.data[1] == 1.0);
      }
    }
}

TEST_CASE("cuda: logits, statistics and label logits of a split vocabulary agree with the CPU") {
  for (const int64_t rank : {0, 2})
    for (const int64_t vocabulary : {7, 64, 131, 1200}) {
      // Without gradients the CPU leaves the logits unchanged, and without masked tokens both
      // devices compute the same rows, so logits can be compared.
      OperationCase c = split_loss_cases(19, 24, vocabulary, 0, rank, false).first;
      require_agreement(c, 2e-2);
      c.in.push_back(random_operand({vocabulary}, 6));
      require_agreement(c, 2e-2);
    }
}

TEST_CASE(
    "cuda: the loss of a vocabulary that is split over ranks and its gradients agree with the "
    "whole one") {
  for (const int64_t vocabulary : {9, 96, 133, 1048})
    for (const int masked_every : {0, 3, 1})
      for (const DTypes dtypes : kDTypes) {
        // Some cases have a bias: with whole vectors and without, with padding and without.
        const bool biased = masked_every == (vocabulary == 1048 ? 0 : 3);
        constexpr int64_t kTokens = 22, kHidden = 24, kRanks = 2;
        const double softcap = vocabulary == 133 ? 1.5 : 0.0;
        // Rows that the last rank has behind the vocabulary's.
        const int64_t padding = vocabulary == 9 || vocabulary == 1048 ? 0 : 1;
        const int64_t rows = kRanks * vocabulary - padding;
        CAPTURE(vocabulary, masked_every, dtype_name(dtypes.activation),
                dtype_name(dtypes.gradient));
        OperationCase whole =
            loss_case(kTokens, kHidden, rows, kTokens, masked_every, true, softcap);
        whole.out[0] = Operand::loss(0.0, 0.0);
        Array w = *whole.in[1].content;
        w.data.resize(static_cast<size_t>(kRanks * vocabulary * kHidden));
        // The padding's bias of 100 would make a padding row the predicted token.
        std::vector<double> bias = random_array({rows}, 6).data;
        bias.resize(static_cast<size_t>(kRanks * vocabulary), 100.0);
        std::vector<OperationCase> firsts, seconds;
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          const auto begin = w.data.begin() + rank * vocabulary * kHidden;
          const std::vector<Operand> given{
              whole.in[0],
              Operand::activation({{vocabulary, kHidden}, {begin, begin + vocabulary * kHidden}}),
              whole.in[2]};
          const VocabularyAttrs attrs{true, kRanks, rank, 0, softcap, padding > 0 ? rows : 0};
          firsts.push_back({OpKind::kVocabularyLogits,
                            attrs,
                            given,
                            {Operand::statistic({kTokens, vocabulary}),
                             Operand::statistic({kTokens, 2}), Operand::statistic({kTokens})}});
          seconds.push_back({OpKind::kVocabularyCrossEntropy,
                             attrs,
                             given,
                             {Operand::loss(0.0, 0.0), Operand::out({kTokens, kHidden}),
                              Operand::gradient(Dims{vocabulary, kHidden})}});
          seconds.back().in.resize(6);
          if (!biased) continue;
          const auto first = bias.begin() + rank * vocabulary;
          firsts.back().in.push_back(
              Operand::activation({{vocabulary}, {first, first + vocabulary}}));
          seconds.back().out.push_back(Operand::gradient(Dims{vocabulary}));
        }
        if (biased) whole = with_bias(std::move(whole), rows);
        std::vector<Array> expected = run_on_cpu(whole, dtypes);
        // The whole head lists the gradient of the bias before that of the matrix.
        if (biased) std::swap(expected[2], expected[3]);
        std::vector<Array> found = split_head_on_gpu(firsts, seconds, dtypes);
        const double tolerance = dtypes.activation == DType::kF32 ? 2e-5 : 2e-2;
        for (size_t i = 0; i < expected.size(); ++i) {
          CAPTURE(i);
          const int64_t width = i < 2 ? 0 : i == 2 ? kHidden : 1;
          if (i >= 2) found[i].dims[0] -= padding;
          for (int64_t k = 0; k < padding * width; ++k, found[i].data.pop_back())
            REQUIRE(found[i].data.back() == 0.0);
          REQUIRE(relative_error(found[i], expected[i]) < tolerance);
        }
        REQUIRE(found[0].data[1] == expected[0].data[1]);
      }
}

TEST_CASE(
    "cuda: the second operation of a split head adds to loss and weight gradient, and writes its "
    "chunk's rows") {
  for (const DTypes dtypes : kDTypes) {
    OperationCase c = split_loss_cases(19, 24, 40, 3, 1, true).second;
    c.accumulate = true;
    c.changed_input = 3;
    const std::vector<Array> out = run_on_gpu(c, dtypes);
    for (size_t n = 0; n < 19; ++n)
      for (size_t i = 0; i < 24; ++i) {
        const double v = out[1].data[n * 24 + i];
        if (n < 2) REQUIRE(v == 0.5);
        if (n >= 2) REQUIRE((v == 0.0) == (n % 3 == 0));
      }
    c.accumulate = false;
    Operand& dw = c.out[2];
    const Array before = rounded(*dw.content, dtypes.gradient);
    // A later chunk adds to the gradients even without `accumulate`.
    REQUIRE(relative_error(run_on_gpu(c, dtypes)[2], out[2]) == 0.0);
    REQUIRE(relative_error(out[2], before) > 0.0);
    c.in[2].ints[5] = 120;
    REQUIRE(std::isnan(run_on_gpu(c, dtypes)[0].data[0]));
  }
}

TEST_CASE("cuda: results have the same bits from run to run", "[gpu]") {
  const auto [forward, backward] = attention_cases(kAttentionCases[4]);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 4000; ++i) tokens.push_back(i * i % 50);
  const std::vector<OperationCase> cases{
      forward,
      backward,
      loss_case(200, 96, 1000, 64, 4, true),
      {OpKind::kEmbedWgrad,
       NoAttrs{},
       {Operand::tokens(tokens), random_operand({4000, 64}, 2)},
       {Operand::gradient(Dims{50, 64})}},
      {OpKind::kLinearWgrad,
       NoAttrs{},
       {random_operand({2000, 72}, 1), random_operand({2000, 48}, 2)},
       {Operand::gradient(Dims{72, 48})}},
      {OpKind::kBiasWgrad,
       NoAttrs{},
       {random_operand({3000, 72}, 1)},
       {Operand::gradient(Dims{72})}}};
  for (const OperationCase& c : cases)
    for (const DTypes dtypes : kDTypes) {
      CAPTURE(op_name(c.kind));
      const auto first = bits_on_gpu(c, dtypes);
      for (int again = 0; again < 5; ++again) REQUIRE((bits_on_gpu(c, dtypes) == first));
    }
}

void require_unsupported(const OperationCase& c, DTypes dtypes, const std::string& message) {
  try {
    run_on_gpu(c, dtypes);
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kUnsupported);
    REQUIRE(e.message() == message);
  }
}

TEST_CASE("cuda: what the kernels do not support is refused by name") {
  const Operand x = random_operand({2, 2}, 1);
  require_unsupported({OpKind::kAdd, NoAttrs{}, {x, x}, {Operand::out({2, 2})}},
                      {DType::kF64, DType::kF64},
                      "the CUDA kernels compute in F32, BF16 and F16, not F64 (add)");
  require_unsupported({OpKind::kAttention,
                       attention_attrs(1, 1, 258, 2),
                       {random_operand({2, 774}, 1), Operand::tokens({0, 0})},
                       {Operand::out({2, 258}), Operand::statistic({1, 2})}},
                      kDTypes[2],
                      "attention heads of 258 elements are too large for the CUDA kernels");
}

}  // namespace
}  // namespace ftrun::testing

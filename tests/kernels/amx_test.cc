#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "amx_on_vectors.h"
#include "operation_runner.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

/// A head of attention: the size of a row of q, k or v, the number of tokens (at most two blocks),
/// and the window.
struct Head {
  int64_t size, tokens, window;
};

/// An array with a margin behind it that nobody may write.
class Guarded {
 public:
  Guarded(int64_t count, float value)
      : numbers_(static_cast<size_t>(count + kMargin), value), count_(count) {
    std::fill(numbers_.end() - kMargin, numbers_.end(), kMark);
  }
  float* data() { return numbers_.data(); }
  float operator[](int64_t i) const { return numbers_[static_cast<size_t>(i)]; }
  std::span<const float> all() const { return {numbers_.data(), static_cast<size_t>(count_)}; }
  void require_margin() const {
    REQUIRE(
        std::all_of(numbers_.end() - kMargin, numbers_.end(), [](float v) { return v == kMark; }));
  }

 private:
  static constexpr int64_t kMargin = 1024;
  static constexpr float kMark = 12345.0F;
  std::vector<float> numbers_;
  int64_t count_;
};

struct PackedOperands {
  Guarded keys, keys_transposed, values, values_transposed;
};

struct Forward {
  std::vector<double> out, lse;
};

class AttentionTiles {
 public:
  explicit AttentionTiles(const Head& head)
      : head_(head), padded_((head.size + 15) / 16 * 16), stride_(4 * head.size + 6) {
    for (std::vector<BFloat16>* part : {&q_, &k_, &v_, &da_}) {
      // The elements between and after the rows are NaN.
      part->assign(static_cast<size_t>(head.tokens * stride_), BFloat16{0xFFFF});
      const Array numbers = random_array({head.tokens, head.size}, ++seed_);
      for (int64_t row = 0; row < head.tokens; ++row)
        for (int64_t i = 0; i < head.size; ++i)
          (*part)[static_cast<size_t>(row * stride_ + i)].bits =
              bits_of(numbers.data[static_cast<size_t>(row * head.size + i)], DType::kBF16);
    }
    for (int64_t t = 0; t < head.tokens; ++t) {
      lowest_.push_back(static_cast<int32_t>(std::max<int64_t>(0, t - head.window + 1)));
      delta_.push_back(0.01F * static_cast<float>(t % 7));
    }
  }

  int64_t blocks() const { return (head_.tokens + kBlock - 1) / kBlock; }
  int64_t rows(int64_t block) const { return std::min(kBlock, head_.tokens - block * kBlock); }

  Forward forward(const VectorKernels<BFloat16>& kernels, int64_t block) {
    std::vector<float> keys, values;
    for (int64_t key_block = 0; key_block < blocks(); ++key_block) {
      const PackedOperands packed = packed_operands(kernels, key_block);
      keys.insert(keys.end(), packed.keys_transposed.all().begin(),
                  packed.keys_transposed.all().end());
      values.insert(values.end(), packed.values.all().begin(), packed.values.all().end());
    }
    std::vector<BFloat16> out(static_cast<size_t>(kBlock * head_.size));
    std::vector<float> lse(kBlock);
    Guarded scratch(2 * kBlock * padded_ + kForwardScratch, NAN);
    kernels.attention_forward(
        {.q = at(q_, block),
         .qkv_stride = stride_,
         .keys_transposed = keys.data(),
         .values = values.data(),
         .head_size = head_.size,
         .padded_head = padded_,
         .scale = scale(),
         .softcap = 0,
         .block = block,
         .rows = rows(block),
         .first_key_block = lowest_[static_cast<size_t>(block * kBlock)] / kBlock,
         .lowest = lowest_.data() + block * kBlock,
         .out = out.data(),
         .out_stride = head_.size,
         .lse = lse.data(),
         .scratch = scratch.data()});
    scratch.require_margin();
    Forward found;
    for (int64_t i = 0; i < rows(block) * head_.size; ++i)
      found.out.push_back(number_of(out[static_cast<size_t>(i)].bits, DType::kBF16));
    found.lse.assign(lse.begin(), lse.begin() + rows(block));
    lse_.resize(static_cast<size_t>(head_.tokens));
    std::copy_n(lse.begin(), rows(block), lse_.begin() + block * kBlock);
    return found;
  }

  /// Computes dq, dk and dv, each added to what is there already. Returns them one after the other.
  std::vector<double> backward(const VectorKernels<BFloat16>& kernels, int64_t query_block,
                               int64_t key_block) {
    PackedOperands key = packed_operands(kernels, key_block);
    const int64_t tile = kBlock * padded_;
    Guarded dq(tile, 0.5F), dk(tile, 0.25F), dv(tile, 1.0F),
        scratch(2 * tile + kBackwardScratch, NAN);
    kernels.attention_backward({.q = at(q_, query_block),
                                .da = at(da_, query_block),
                                .qkv_stride = stride_,
                                .da_stride = stride_,
                                .keys_transposed = key.keys_transposed.data(),
                                .values_transposed = key.values_transposed.data(),
                                .keys = key.keys.data(),
                                .head_size = head_.size,
                                .padded_head = padded_,
                                .scale = scale(),
                                .softcap = 0,
                                .query_block = query_block,
                                .key_block = key_block,
                                .rows = rows(query_block),
                                .lowest = lowest_.data() + query_block * kBlock,
                                .lse = lse_.data() + query_block * kBlock,
                                .delta = delta_.data() + query_block * kBlock,
                                .dq = dq.data(),
                                .accumulate_dq = true,
                                .dk = dk.data(),
                                .dv = dv.data(),
                                .scratch = scratch.data()});
    scratch.require_margin();
    std::vector<double> found;
    for (const auto& [gradient, count] :
         {std::pair{&dq, rows(query_block)}, std::pair{&dk, kBlock}, std::pair{&dv, kBlock}}) {
      gradient->require_margin();
      for (int64_t row = 0; row < count; ++row)
        for (int64_t i = 0; i < head_.size; ++i) found.push_back((*gradient)[row * padded_ + i]);
    }
    return found;
  }

 private:
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_.size)); }
  const BFloat16* at(const std::vector<BFloat16>& part, int64_t block) const {
    return part.data() + block * kBlock * stride_;
  }
  PackedOperands packed_operands(const VectorKernels<BFloat16>& kernels, int64_t block) const {
    const Guarded none(kBlock * padded_, NAN);
    PackedOperands p{none, none, none, none};
    kernels.pack_rows(at(k_, block), stride_, rows(block), head_.size, padded_, p.keys.data());
    kernels.pack_columns(at(k_, block), stride_, rows(block), head_.size, padded_,
                         p.keys_transposed.data());
    kernels.pack_rows(at(v_, block), stride_, rows(block), head_.size, padded_, p.values.data());
    kernels.pack_columns(at(v_, block), stride_, rows(block), head_.size, padded_,
                         p.values_transposed.data());
    for (const Guarded* part : {&p.keys, &p.keys_transposed, &p.values, &p.values_transposed})
      part->require_margin();
    return p;
  }

  Head head_;
  int64_t padded_, stride_;
  uint64_t seed_ = 0;
  std::vector<BFloat16> q_, k_, v_, da_;
  std::vector<int32_t> lowest_;
  std::vector<float> delta_, lse_;
};

void require_near(const std::vector<double>& actual, const std::vector<double>& expected,
                  double relative, double of_largest) {
  REQUIRE(actual.size() == expected.size());
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO(i);
    REQUIRE(std::abs(actual[i] - expected[i]) <=
            relative * std::abs(expected[i]) + of_largest * largest);
  }
}

/// Compares attention with that of avx512_bf16, which attention_test.cc compares with autograd.
/// `slack` is the allowed difference, as a share of the largest value.
void require_attention_of_pairs(const VectorKernels<BFloat16>& kernels, double slack) {
  const std::vector<Head> heads{{2, 1, 9},       {6, 5, 9},      {16, 64, 99},  {20, 17, 99},
                                {20, 95, 99},    {34, 77, 40},   {48, 81, 20},  {64, 63, 64},
                                {64, 128, 99},   {64, 127, 127}, {80, 97, 127}, {112, 100, 99},
                                {128, 113, 127}, {256, 90, 127}};
  for (const Head& head : heads) {
    CAPTURE(head.size, head.tokens, head.window);
    AttentionTiles tiles(head);
    for (int64_t block = 0; block < tiles.blocks(); ++block) {
      const Forward found = tiles.forward(kernels, block),
                    expected = tiles.forward(avx512_bf16::kBFloat16, block);
      require_near(found.lse, expected.lse, 1e-6, 1e-6);
      // A different last bit of a sum may round to the neighboring bf16 number.
      require_near(found.out, expected.out, unit_roundoff(DType::kBF16), slack);
    }
    for (int64_t query = 0; query < tiles.blocks(); ++query)
      for (int64_t key = 0; key <= query; ++key)
        require_near(tiles.backward(kernels, query, key),
                     tiles.backward(avx512_bf16::kBFloat16, query, key), 0, slack);
  }
}

TEST_CASE("attention on matrix units, emulated by vectors, agrees with attention by pairs of bf16",
          "[.needs-avx512_bf16]") {
  require_attention_of_pairs(amx_on_vectors::kBFloat16, 1e-6);
}

// Matrix units sum the first and the second elements of pairs separately, so a weight may be
// rounded to the other neighbor.
TEST_CASE("attention on matrix units agrees with attention by pairs", "[.needs-matrix_units]") {
  require_attention_of_pairs(amx::kBFloat16, 1e-3);
}

}  // namespace
}  // namespace ftrun::testing

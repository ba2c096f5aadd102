// These tests run optimizer steps on states that are stored as 8-bit codes.
#include <cmath>
#include <cstring>
#include <span>

#include "operation_runner.h"
#include "optimizers/code_map.h"
#include "optimizers/optimizer_config.h"
#include "optimizers/optimizers.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

using Floats = std::vector<float>;
using Codes = std::vector<uint8_t>;

/// Returns the config of AdamW with 8-bit states.
OptimizerConfig optimizer_8bit(double decay = 0.0) {
  for (size_t type = 0; type < kOfferedOptimizers; ++type) {
    OptimizerConfig config = optimizer_traits(static_cast<OptimizerType>(type)).defaults;
    config.type = static_cast<OptimizerType>(type);
    config.weight_decay = decay;
    if (optimizer_traits(config.type).has_8bit_states) return config;
  }
  throw std::logic_error("no optimizer has codes");
}

StepScalars scalars_of(int step, float learning_rate) {
  StepScalars s;
  s.learning_rate = learning_rate;
  s.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step));
  s.bias_correction2 = static_cast<float>(1.0 - std::pow(0.999, step));
  s.rounding_key = rounding_key(17, step);
  return s;
}

size_t blocks_of(size_t count) {
  return (count + kCodeBlock - 1) / kCodeBlock;
}

struct State8bit {
  explicit State8bit(size_t count)
      : codes{Codes(count), Codes(count)},
        scales{Floats(blocks_of(count)), Floats(blocks_of(count))} {}
  Codes codes[2];
  Floats scales[2];

  FlatUpdate update(Floats& parameters, const Floats& gradients) {
    return {.parameters = parameters.data(),
            .gradients = gradients.data(),
            .states = {codes[0].data(), codes[1].data()},
            .state_dtype = DType::kU8,
            .scales = {scales[0].data(), scales[1].data()},
            .count = static_cast<int64_t>(parameters.size())};
  }
};

/// Returns the code with the nearest value; of two equally near ones the even code. A negative
/// share of a first moment gets a code with a negative value.
uint8_t nearest_code(const DynamicCodeMap& map, float share, bool has_negative) {
  int best = 0;
  for (int code = 1; code < kCodes; ++code) {
    const float halfway = (map.values[code - 1] + map.values[code]) * 0.5F;
    if (share > halfway || (share == halfway && code % 2 == 0)) best = code;
  }
  if (has_negative && share < 0 && map.values[best] >= 0) --best;
  return static_cast<uint8_t>(best);
}

Floats decode_codes(const State8bit& state, int s) {
  const DynamicCodeMap& map = s == 0 ? kSignedCodeMap : kUnsignedCodeMap;
  Floats numbers;
  for (size_t i = 0; i < state.codes[s].size(); ++i)
    numbers.push_back(map.values[state.codes[s][i]] * state.scales[s][i / kCodeBlock]);
  return numbers;
}

/// Encodes the states `after`, one element at a time; a step on codes must leave the same codes and
/// scales.
State8bit encode_states(const Floats (&after)[2]) {
  State8bit state(after[0].size());
  for (int s = 0; s < 2; ++s)
    for (size_t i = 0; i < after[s].size(); ++i) {
      float& scale = state.scales[s][i / kCodeBlock];
      scale = std::max(scale, std::abs(after[s][i]));
    }
  for (int s = 0; s < 2; ++s)
    for (size_t i = 0; i < after[s].size(); ++i) {
      const float scale = state.scales[s][i / kCodeBlock];
      if (scale > 0)
        state.codes[s][i] =
            nearest_code(s == 0 ? kSignedCodeMap : kUnsignedCodeMap, after[s][i] / scale, s == 0);
    }
  return state;
}

/// Returns the gradients with which the reference results of bitsandbytes 0.50.2 were computed.
Floats gradients_at(int step, size_t count) {
  Floats g(count);
  for (size_t i = 0; i < count; ++i)
    g[i] = std::cos(0.013F * static_cast<float>(i) + 0.1F * static_cast<float>(step)) * 0.01F *
           static_cast<float>(1 + i % 7);
  return g;
}

TEST_CASE("the maps of codes are sorted, contain 0 and 1, and agree with bitsandbytes in samples") {
  for (const DynamicCodeMap* map : {&kSignedCodeMap, &kUnsignedCodeMap})
    for (int code = 1; code < kCodes; ++code) {
      CAPTURE(code);
      REQUIRE(map->values[code - 1] < map->values[code]);
      REQUIRE(map->values[code - 1] < map->smallest_shares[code]);
      REQUIRE(map->smallest_shares[code] < map->values[code] + (code == 127 ? 1e-9F : 0.0F));
    }
  REQUIRE(kSignedCodeMap.values[0] == -0.99296874F);
  REQUIRE(kSignedCodeMap.values[18] == -0.7398437F);
  REQUIRE(kSignedCodeMap.values[127] == 0.0F);
  REQUIRE(kSignedCodeMap.values[128] == 5.5000004e-07F);
  REQUIRE(kSignedCodeMap.values[255] == 1.0F);
  REQUIRE(kUnsignedCodeMap.values[0] == 0.0F);
  REQUIRE(kUnsignedCodeMap.values[1] == 3.2500003e-7F);
  REQUIRE(kUnsignedCodeMap.values[9] == 3.8125e-05F);
  REQUIRE(kUnsignedCodeMap.values[253] == 0.9894531F);
  REQUIRE(kUnsignedCodeMap.values[254] == 0.9964844F);
}

TEST_CASE("a step on codes leaves the encoded results of the same step on decoded states") {
  const OptimizerConfig config = optimizer_8bit(0.1);
  run_once_per_entry([&] {
    for (const size_t count : {1u, 255u, 256u, 257u, 4096u, 70'001u}) {
      CAPTURE(count);
      Floats p = random_floats(static_cast<int64_t>(count), 1), expected_p = p;
      State8bit state(count);
      for (int step = 1; step <= 5; ++step) {
        Floats g = random_floats(static_cast<int64_t>(count), 100 + static_cast<uint64_t>(step));
        // Small numbers are next to large ones, and one block is all zeros.
        for (size_t i = 0; i < count; ++i) {
          if (i % 3 == 0) g[i] *= 1e-6F;
          if (i % 1000 == 7) g[i] = 0.0F;
          if (i / kCodeBlock == 2) g[i] = 0.0F;
        }
        const StepScalars s = scalars_of(step, 1e-2F);
        Floats numbers[2]{decode_codes(state, 0), decode_codes(state, 1)};
        optimizer_update({.parameters = expected_p.data(),
                          .gradients = g.data(),
                          .states = {numbers[0].data(), numbers[1].data()},
                          .count = static_cast<int64_t>(count)},
                         config, s);
        const State8bit expected = encode_states(numbers);
        optimizer_update(state.update(p, g), config, s);
        CAPTURE(step);
        REQUIRE(p == expected_p);
        for (int k = 0; k < 2; ++k) {
          REQUIRE(state.scales[k] == expected.scales[k]);
          REQUIRE(state.codes[k] == expected.codes[k]);
        }
      }
    }
  });
}

TEST_CASE("values near the middle between two 8-bit codes get the nearest code") {
  const OptimizerConfig config = optimizer_8bit();
  // A step with beta1 = 0 and a learning rate of 0 stores the gradients as they are; the gradient
  // of 1 makes the scale 1.
  OptimizerConfig plain = config;
  run_once_per_entry([&] {
    for (int code = 1; code < kCodes; ++code)
      for (const int side : {-1, 0, 1}) {
        const float halfway =
            (kSignedCodeMap.values[code - 1] + kSignedCodeMap.values[code]) * 0.5F;
        const float share = side == 0 ? halfway : std::nextafter(halfway, side < 0 ? -2.0F : 2.0F);
        Floats p(2, 0.0F), g{1.0F, share};
        State8bit state(2);
        StepScalars s = scalars_of(1, 0.0F);
        s.beta1 = 0.0;
        optimizer_update(state.update(p, g), plain, s);
        CAPTURE(code, side, share);
        REQUIRE(state.scales[0][0] == 1.0F);
        REQUIRE(state.codes[0][0] == 255);
        REQUIRE(state.codes[0][1] == nearest_code(kSignedCodeMap, share, true));
      }
  });
}

TEST_CASE(
    "codes, scales and parameters equal those of bitsandbytes' AdamW8bit after 1, 10 and 20 "
    "steps") {
  constexpr size_t kCount = 4096;
  run_once_per_entry([] {
    for (const double decay : {0.0, 0.01}) {
      const OptimizerConfig config = optimizer_8bit(decay);
      Floats p(kCount);
      for (size_t i = 0; i < kCount; ++i) p[i] = std::sin(0.01F * static_cast<float>(i));
      State8bit state(kCount);
      const auto first = [&](int s) {
        return Codes(state.codes[s].begin(), state.codes[s].begin() + 6);
      };
      for (int step = 1; step <= 10; ++step) {
        optimizer_update(state.update(p, gradients_at(step, kCount)), config,
                         scalars_of(step, 1e-2F));
        if (step != 1) continue;
        REQUIRE(first(0) == Codes{194, 204, 214, 224, 234, 244});
        REQUIRE(first(1) == Codes{70, 113, 138, 158, 183, 214});
        REQUIRE(state.scales[0][0] == Approx(0.00699456548).epsilon(1e-7));
        REQUIRE(state.scales[1][0] == Approx(4.892395e-6).epsilon(1e-6));
      }
      const Floats expected = decay == 0.0
                                  ? Floats{-0.1031639F, -0.0888000F, -0.0783178F, -0.0677805F}
                                  : Floats{-0.1031178F, -0.0887647F, -0.0782929F, -0.0677658F};
      for (size_t i = 0; i < expected.size(); ++i)
        REQUIRE(p[i] == Approx(expected[i]).margin(1e-7));
      REQUIRE(first(0) == Codes{192, 199, 207, 215, 223, 230});
      REQUIRE(state.scales[0][0] == Approx(0.04357495).epsilon(1e-6));
      for (int step = 11; step <= 20; ++step)
        optimizer_update(state.update(p, gradients_at(step, kCount)), config,
                         scalars_of(step, 1e-2F));
      REQUIRE(first(0) == Codes{164, 173, 174, 186, 183, 188});
      REQUIRE(first(1) == Codes{65, 87, 116, 134, 148, 163});
      REQUIRE(state.scales[0][0] == Approx(0.053359609).epsilon(1e-6));
      REQUIRE(state.scales[1][0] == Approx(7.0966184e-5).epsilon(1e-6));
      if (decay == 0.0) continue;
      const Floats last{-0.16746192F, -0.14931192F, -0.13863388F, -0.13068214F};
      for (size_t i = 0; i < last.size(); ++i) REQUIRE(p[i] == Approx(last[i]).margin(1e-6));
    }
  });
}

TEST_CASE(
    "steps on codes have the same bits for any number of threads and any division at blocks") {
  const OptimizerConfig config = optimizer_8bit(0.1);
  constexpr size_t kCount = 300'000, kCut = 512 * 256;
  const int threads = kernel_threads();
  Floats results[2];
  State8bit states[2]{State8bit(kCount), State8bit(kCount)};
  for (const int run : {0, 1}) {
    set_kernel_threads(run == 0 ? 1 : 3);
    Floats p = random_floats(kCount, 1);
    for (int step = 1; step <= 3; ++step) {
      const Floats g = random_floats(kCount, 100 + static_cast<uint64_t>(step));
      FlatUpdate whole = states[run].update(p, g);
      if (run == 0) {
        optimizer_update(whole, config, scalars_of(step, 1e-3F));
        continue;
      }
      FlatUpdate rest = whole;
      whole.count = kCut;
      rest.count -= kCut;
      rest.first_element = kCut;
      rest.parameters = p.data() + kCut;
      rest.gradients = g.data() + kCut;
      for (size_t s = 0; s < 2; ++s) {
        rest.states[s] = states[run].codes[s].data() + kCut;
        rest.scales[s] = states[run].scales[s].data() + kCut / kCodeBlock;
      }
      optimizer_update(whole, config, scalars_of(step, 1e-3F));
      optimizer_update(rest, config, scalars_of(step, 1e-3F));
    }
    results[run] = p;
  }
  set_kernel_threads(threads);
  REQUIRE(results[0] == results[1]);
  for (int s = 0; s < 2; ++s) {
    REQUIRE(states[0].codes[s] == states[1].codes[s]);
    REQUIRE(states[0].scales[s] == states[1].scales[s]);
  }
}

TEST_CASE(
    "ranks that have columns of a tensor, or begin within a block of it, leave the codes of the "
    "whole") {
  const OptimizerConfig config = optimizer_8bit(0.1);
  struct Shape {
    int64_t rows, columns, parts;
  };
  run_once_per_entry([&] {
    for (const Shape& shape :
         {Shape{37, 96, 3}, Shape{9, 1000, 4}, Shape{5000, 2, 2}, Shape{3, 7000, 7}}) {
      CAPTURE(shape.rows, shape.columns, shape.parts);
      const auto count = static_cast<size_t>(shape.rows * shape.columns);
      const int64_t width = shape.columns / shape.parts;
      Floats p = random_floats(static_cast<int64_t>(count), 1);
      State8bit whole(count);
      struct Part {
        Floats parameters;
        State8bit state;
      };
      const auto columns_of = [&](const auto& all, int64_t part) {
        std::remove_cvref_t<decltype(all)> own;
        for (int64_t row = 0; row < shape.rows; ++row)
          for (int64_t c = 0; c < width; ++c)
            own.push_back(all[static_cast<size_t>(row * shape.columns + part * width + c)]);
        return own;
      };
      std::vector<Part> parts;
      for (int64_t part = 0; part < shape.parts; ++part) {
        parts.push_back({columns_of(p, part), State8bit(count)});
        for (Codes& codes : parts.back().state.codes)
          codes.resize(static_cast<size_t>(shape.rows * width));
      }
      Floats old_scales[2]{Floats(blocks_of(count)), Floats(blocks_of(count))};
      for (int step = 1; step <= 4; ++step) {
        const StepScalars s = scalars_of(step, 1e-2F);
        const Floats g =
            random_floats(static_cast<int64_t>(count), 100 + static_cast<uint64_t>(step));
        optimizer_update(whole.update(p, g), config, s);
        Floats new_scales[2]{Floats(blocks_of(count)), Floats(blocks_of(count))};
        for (const bool only_scales : {true, false})
          for (int64_t part = 0; part < shape.parts; ++part) {
            Part& own = parts[static_cast<size_t>(part)];
            const Floats own_g = columns_of(g, part);
            // The part is updated in two ranges; the second begins at an arbitrary element.
            const int64_t cut = shape.rows * width / 3;
            for (const int64_t first : {int64_t{0}, cut}) {
              FlatUpdate u = own.state.update(own.parameters, own_g);
              u.parameters = own.parameters.data() + first;
              u.gradients = own_g.data() + first;
              u.count = first == 0 ? cut : shape.rows * width - cut;
              for (size_t k = 0; k < 2; ++k) {
                u.states[k] = own.state.codes[k].data() + first;
                u.scales[k] = old_scales[k].data();
                u.new_scales[k] = new_scales[k].data();
              }
              u.blocks = {.offset = first,
                          .row_elements = shape.columns,
                          .rank_row_elements = width,
                          .first_element = part * width};
              if (only_scales)
                compute_scales(u, config, s);
              else
                optimizer_update(u, config, s);
            }
          }
        for (int k = 0; k < 2; ++k) {
          old_scales[k] = new_scales[k];
          REQUIRE(new_scales[k] == whole.scales[k]);
          for (int64_t part = 0; part < shape.parts; ++part)
            REQUIRE(parts[static_cast<size_t>(part)].state.codes[k] ==
                    columns_of(whole.codes[k], part));
        }
        for (int64_t part = 0; part < shape.parts; ++part)
          REQUIRE(parts[static_cast<size_t>(part)].parameters == columns_of(p, part));
      }
    }
  });
}

TEST_CASE(
    "a 16-bit gradient, a rounded parameter and its copy work with 8-bit states as with others") {
  const OptimizerConfig config = optimizer_8bit(0.1);
  constexpr size_t kCount = 1003;
  run_once_per_entry([&] {
    const Floats wide = random_floats(kCount, 1);
    Floats g = random_floats(kCount, 2);
    std::vector<uint16_t> p(kCount), narrow_g(kCount), copy(kCount), expected_p(kCount),
        expected_copy(kCount);
    convert(wide.data(), DType::kF32, p.data(), DType::kBF16, kCount);
    convert(g.data(), DType::kF32, narrow_g.data(), DType::kBF16, kCount);
    expected_p = p;
    State8bit state(kCount);
    Floats numbers[2]{Floats(kCount), Floats(kCount)};
    FlatUpdate u{.parameters = p.data(),
                 .parameter_dtype = DType::kBF16,
                 .gradients = narrow_g.data(),
                 .gradient_dtype = DType::kBF16,
                 .states = {state.codes[0].data(), state.codes[1].data()},
                 .state_dtype = DType::kU8,
                 .scales = {state.scales[0].data(), state.scales[1].data()},
                 .copy = copy.data(),
                 .copy_dtype = DType::kF16,
                 .count = kCount,
                 .first_element = 65'000};
    optimizer_update(u, config, scalars_of(1, 1e-2F));
    u.parameters = expected_p.data();
    u.copy = expected_copy.data();
    u.states = {numbers[0].data(), numbers[1].data()};
    u.state_dtype = DType::kF32;
    u.scales = {};
    optimizer_update(u, config, scalars_of(1, 1e-2F));
    REQUIRE(p == expected_p);
    REQUIRE(copy == expected_copy);
    REQUIRE(encode_states(numbers).codes[0] == state.codes[0]);
  });
}

}  // namespace
}  // namespace ftrun::testing

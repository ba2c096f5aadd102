#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "gpu_operation_cases.h"
#include "ops/kinds.h"
#include "optimizers/code_map.h"
#include "optimizers/max_states.h"
#include "optimizers/optimizers.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

Array random_floats(int64_t count, uint64_t seed) {
  return random_array({count}, seed);
}

std::vector<float> as_floats(const Array& a) {
  return {a.data.begin(), a.data.end()};
}

template <class T>
DeviceBytes upload(const std::vector<T>& values) {
  DeviceBytes bytes(static_cast<int64_t>(values.size() * sizeof(T)));
  bytes.write(values.data());
  return bytes;
}

DeviceBytes upload(const Array& a, DType dtype) {
  return upload(to_bytes(a, dtype));
}

Array download(const DeviceBytes& bytes, DType dtype) {
  return from_bytes(bytes.read(), {bytes.size() / dtype_bytes(dtype)}, dtype);
}

double read_double(const DeviceBytes& bytes) {
  return download(bytes, DType::kF64).data[0];
}

/// Element counts; 1003 is not a multiple of the vector length.
const std::vector<int64_t> kCounts{1003, 4096};

StepScalars scalars_of(int step) {
  StepScalars s;
  s.learning_rate = 3e-3F;
  s.update = step + 1;
  s.bias_correction1 = static_cast<float>(1.0 - std::pow(0.9, step + 1));
  s.bias_correction2 = static_cast<float>(1.0 - std::pow(0.999, step + 1));
  s.update_gradient_factor = 0.25F;
  return s;
}

Array array_of(const std::vector<float>& v) {
  return {{static_cast<int64_t>(v.size())}, {v.begin(), v.end()}};
}

TEST_CASE("cuda: Adam and AdamW steps give the CPU's parameters, and their bf16 copy") {
  for (const int64_t count : kCounts)
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool decoupled : {true, false}) {
        CAPTURE(count, dtype_name(dtype), decoupled);
        std::vector<float> p = as_floats(random_floats(count, 1));
        std::vector<float> m(static_cast<size_t>(count), 0.0F), v = m;
        const DeviceBytes dp = upload(p), dm = upload(m), dv = upload(v), copy(2 * count);
        const OptimizerConfig options{
            .type = decoupled ? OptimizerType::kAdamW : OptimizerType::kAdam,
            .weight_decay = 0.1,
            .adam_w_mode = false};
        for (int step = 0; step < 5; ++step) {
          const StepScalars s = scalars_of(step);
          const Array g = rounded(random_floats(count, 100 + static_cast<uint64_t>(step)), dtype);
          const DeviceBytes dg = upload(g, dtype), ds = upload(std::vector<StepScalars>{s});
          const std::vector<float> cpu_g = as_floats(g);
          optimizer_update({.parameters = p.data(),
                            .gradients = cpu_g.data(),
                            .states = {m.data(), v.data()},
                            .count = count},
                           options, s);
          gpu().optimizer_update({.parameters = dp.as<float>(),
                                  .gradients = dg.data(),
                                  .gradient_dtype = dtype,
                                  .states = {dm.as<float>(), dv.as<float>()},
                                  .copy = copy.data(),
                                  .count = count},
                                 options, ds.as<StepScalars>(), stream());
          gpu().synchronize(stream());
        }
        REQUIRE(relative_error(download(dp, DType::kF32), array_of(p)) < 1e-6);
        REQUIRE(relative_error(download(dm, DType::kF32), array_of(m)) < 1e-6);
        REQUIRE(relative_error(download(dv, DType::kF32), array_of(v)) < 1e-6);
        REQUIRE((copy.read() == to_bytes(download(dp, DType::kF32), DType::kBF16)));
        REQUIRE((dp.guards_are_intact() && dm.guards_are_intact() && dv.guards_are_intact() &&
                 copy.guards_are_intact()));
      }
}

TEST_CASE("cuda: SGD steps give the CPU's parameters") {
  constexpr OptimizerType kSgd = OptimizerType::kSgd;
  for (const OptimizerConfig& options :
       {OptimizerConfig{.type = kSgd}, OptimizerConfig{.type = kSgd, .weight_decay = 0.05},
        OptimizerConfig{.type = kSgd, .momentum = 0.9},
        OptimizerConfig{.type = kSgd, .weight_decay = 0.01, .momentum = 0.9, .dampening = 0.3},
        OptimizerConfig{.type = kSgd, .weight_decay = 0.01, .momentum = 0.9, .nesterov = true}})
    for (const int64_t count : kCounts) {
      CAPTURE(count, options.momentum, options.dampening, options.nesterov);
      std::vector<float> p = as_floats(random_floats(count, 1)),
                         buffer(static_cast<size_t>(count), NAN);
      const DeviceBytes dp = upload(p), db = upload(buffer);
      for (int step = 0; step < 5; ++step) {
        const StepScalars s = scalars_of(step);
        const std::vector<float> g =
            as_floats(random_floats(count, 100 + static_cast<uint64_t>(step)));
        const DeviceBytes dg = upload(g), ds = upload(std::vector<StepScalars>{s});
        const bool momentum = options.momentum != 0.0;
        optimizer_update({.parameters = p.data(),
                          .gradients = g.data(),
                          .states = {momentum ? buffer.data() : nullptr},
                          .count = count},
                         options, s);
        gpu().optimizer_update({.parameters = dp.as<float>(),
                                .gradients = dg.data(),
                                .states = {momentum ? db.as<float>() : nullptr},
                                .count = count},
                               options, ds.as<StepScalars>(), stream());
        gpu().synchronize(stream());
      }
      REQUIRE(relative_error(download(dp, DType::kF32), array_of(p)) < 1e-6);
    }
}

TEST_CASE("cuda: every optimizer's steps give the CPU's parameters and states") {
  for (size_t type = 0; type < kOfferedOptimizers; ++type)
    for (const int64_t count : kCounts) {
      OptimizerConfig config = optimizer_traits(static_cast<OptimizerType>(type)).defaults;
      config.type = static_cast<OptimizerType>(type);
      config.weight_decay = 0.1;
      config.momentum = 0.9;
      config.lr_decay = 0.25;
      const size_t kept = optimizer_states(config).size();
      CAPTURE(name_of(config.type), count);
      std::vector<float> p = as_floats(random_floats(count, 1));
      std::vector<std::vector<float>> states(kMaxOptimizerStates,
                                             std::vector<float>(static_cast<size_t>(count), 0.25F));
      const DeviceBytes dp = upload(p), first = upload(states[0]), second = upload(states[1]);
      for (int step = 0; step < 5; ++step) {
        const StepScalars s = scalars_of(step);
        const std::vector<float> g =
            as_floats(random_floats(count, 100 + static_cast<uint64_t>(step)));
        const DeviceBytes dg = upload(g), ds = upload(std::vector<StepScalars>{s});
        optimizer_update({.parameters = p.data(),
                          .gradients = g.data(),
                          .states = {states[0].data(), states[1].data()},
                          .count = count},
                         config, s);
        gpu().optimizer_update({.parameters = dp.as<float>(),
                                .gradients = dg.data(),
                                .states = {first.as<float>(), second.as<float>()},
                                .count = count},
                               config, ds.as<StepScalars>(), stream());
        gpu().synchronize(stream());
      }
      REQUIRE(relative_error(download(dp, DType::kF32), array_of(p)) < 1e-6);
      const DeviceBytes* found[] = {&first, &second};
      for (size_t s = 0; s < kMaxOptimizerStates; ++s) {
        REQUIRE(relative_error(download(*found[s], DType::kF32), array_of(states[s])) < 1e-6);
        const bool changed = states[s] != std::vector<float>(static_cast<size_t>(count), 0.25F);
        REQUIRE(changed == (s < kept && count > 0));
      }
    }
}

/// The codes and scales of a state, on the host and on the device.
struct State8bit {
  explicit State8bit(int64_t count)
      : codes(static_cast<size_t>(count)),
        scales(static_cast<size_t>((count + kCodeBlock - 1) / kCodeBlock)),
        device_codes(upload(codes)),
        device_scales(upload(scales)) {}
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  DeviceBytes device_codes, device_scales;

  /// Requires equal scales up to rounding, and equal codes. A few codes may be neighbors instead,
  /// where rounding moved a number across the border between two codes.
  void require_alike() const {
    REQUIRE(relative_error(download(device_scales, DType::kF32), array_of(scales)) < 1e-6);
    const std::vector<std::byte> found = device_codes.read();
    size_t others = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      const int off = std::abs(static_cast<int>(found[i]) - static_cast<int>(codes[i]));
      REQUIRE(off <= 1);
      others += static_cast<size_t>(off);
    }
    REQUIRE(others <= codes.size() / 200);
  }
};

TEST_CASE(
    "cuda: steps on codes give the CPU's parameters, scales and codes, of whole tensors and of a "
    "rank's columns") {
  OptimizerConfig config;
  for (size_t type = 0; type < kOfferedOptimizers; ++type)
    if (optimizer_traits(static_cast<OptimizerType>(type)).has_8bit_states)
      config.type = static_cast<OptimizerType>(type);
  REQUIRE(optimizer_traits(config.type).has_8bit_states);
  config.weight_decay = 0.1;
  // The tensor has 17 rows of 60 elements; the rank has columns [20, 40).
  const BlockMap columns{
      .offset = 0, .row_elements = 60, .rank_row_elements = 20, .first_element = 20};
  for (const bool straddles : {false, true})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t count : straddles ? std::vector<int64_t>{340} : kCounts) {
        CAPTURE(straddles, dtype_name(dtype), count);
        std::vector<float> p = as_floats(random_floats(count, 1));
        const DeviceBytes dp = upload(p);
        // The states have as many scales as the whole tensor has blocks.
        State8bit first(straddles ? 1020 : count), second(straddles ? 1020 : count);
        for (int step = 0; step < 4; ++step) {
          const StepScalars s = scalars_of(step);
          const DeviceBytes ds = upload(std::vector<StepScalars>{s});
          // Gradients have few significant bits, so that products are exact.
          const Array gradient =
              rounded(random_floats(count, 100 + static_cast<uint64_t>(step)), DType::kBF16);
          const std::vector<std::byte> g = to_bytes(gradient, dtype);
          const DeviceBytes dg = upload(gradient, dtype);
          std::vector<float> new_first(first.scales.size()), new_second(second.scales.size());
          const DeviceBytes dn_first = upload(new_first), dn_second = upload(new_second);
          FlatUpdate host{.parameters = p.data(),
                          .gradients = g.data(),
                          .gradient_dtype = dtype,
                          .states = {first.codes.data(), second.codes.data()},
                          .state_dtype = DType::kU8,
                          .scales = {first.scales.data(), second.scales.data()},
                          .count = count};
          FlatUpdate device{
              .parameters = dp.as<float>(),
              .gradients = dg.data(),
              .gradient_dtype = dtype,
              .states = {first.device_codes.data(), second.device_codes.data()},
              .state_dtype = DType::kU8,
              .scales = {first.device_scales.as<float>(), second.device_scales.as<float>()},
              .count = count};
          if (straddles) {
            host.blocks = device.blocks = columns;
            host.new_scales = {new_first.data(), new_second.data()};
            device.new_scales = {dn_first.as<float>(), dn_second.as<float>()};
            compute_scales(host, config, s);
            gpu().compute_scales(device, config, ds.as<StepScalars>(), stream());
          }
          optimizer_update(host, config, s);
          gpu().optimizer_update(device, config, ds.as<StepScalars>(), stream());
          if (straddles) {
            first.scales = new_first;
            second.scales = new_second;
            const int64_t bytes = static_cast<int64_t>(new_first.size() * sizeof(float));
            gpu().copy(first.device_scales.data(), dn_first.data(), bytes, stream());
            gpu().copy(second.device_scales.data(), dn_second.data(), bytes, stream());
          }
          gpu().synchronize(stream());
        }
        REQUIRE(relative_error(download(dp, DType::kF32), array_of(p)) < 1e-4);
        first.require_alike();
        second.require_alike();
      }
}

/// A step with optimizer state in 16 bits, for the CPU and the GPU. Its range begins in the middle
/// of all parameters.
struct RoundedStep {
  DType parameter = DType::kF32, gradient = DType::kF32, state = DType::kF32, copy = DType::kBF16;
  int64_t count = 0;
  /// The index of the first element among all parameters. With it, the 70,000 elements draw from
  /// two sequences of random numbers.
  int64_t first_element = 65'000;
};

struct RoundedResult {
  std::vector<std::byte> parameters, state1, state2, copy;
};

RoundedStep rounded_step(DType parameter, DType gradient, DType state, DType copy) {
  return {parameter, gradient, state, copy, 70'001};
}

/// Calls `step` with an update of memory that holds the case's numbers, which are the same in every
/// call.
template <class Step>
RoundedResult run_case_step(const RoundedStep& c, bool on_gpu, Step step) {
  const auto content = [&](uint64_t seed, DType dtype) {
    Array a = random_floats(c.count, seed);
    // Second moments must not be negative.
    if (seed == 4)
      for (double& v : a.data) v = std::abs(v);
    return to_bytes(a, dtype);
  };
  RoundedResult r{content(1, c.parameter), content(3, c.state), content(4, c.state),
                  std::vector<std::byte>(static_cast<size_t>(c.count * dtype_bytes(c.copy)))};
  // Gradients have few significant bits: products are exact, so fused multiply-add changes nothing.
  const std::vector<std::byte> gradients =
      to_bytes(rounded(random_floats(c.count, 2), DType::kBF16), c.gradient);
  FlatUpdate u{.parameter_dtype = c.parameter,
               .gradient_dtype = c.gradient,
               .state_dtype = c.state,
               .copy_dtype = c.copy,
               .count = c.count,
               .first_element = c.first_element};
  if (!on_gpu) {
    u.parameters = r.parameters.data();
    u.gradients = gradients.data();
    u.states[0] = r.state1.data();
    u.states[1] = r.state2.data();
    u.copy = r.copy.data();
    step(u);
    return r;
  }
  const DeviceBytes p = upload(r.parameters), g = upload(gradients), m = upload(r.state1),
                    v = upload(r.state2), copy = upload(r.copy);
  u.parameters = p.data();
  u.gradients = g.data();
  u.states[0] = m.data();
  u.states[1] = v.data();
  u.copy = copy.data();
  step(u);
  gpu().synchronize(stream());
  REQUIRE((p.guards_are_intact() && g.guards_are_intact() && m.guards_are_intact() &&
           v.guards_are_intact() && copy.guards_are_intact()));
  return {p.read(), m.read(), v.read(), copy.read()};
}

StepScalars scalars_of_powers() {
  StepScalars s = scalars_of(2);
  s.beta1 = s.beta2 = 0.5;
  s.learning_rate = 0.015625F;
  s.rounding_key = rounding_key(7, 3);
  return s;
}

/// Counts the elements of dtype `dtype` (16 bits or fp32) that differ.
int64_t count_differing(const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                        DType dtype) {
  const auto size = static_cast<size_t>(dtype_bytes(dtype));
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); i += size) count += std::memcmp(&a[i], &b[i], size) != 0 ? 1 : 0;
  return count;
}

const std::vector<RoundedStep> kRoundedSteps{
    rounded_step(DType::kF32, DType::kF32, DType::kBF16, DType::kBF16),
    rounded_step(DType::kBF16, DType::kBF16, DType::kF32, DType::kF32),
    rounded_step(DType::kBF16, DType::kF32, DType::kBF16, DType::kBF16),
    rounded_step(DType::kF32, DType::kF16, DType::kF32, DType::kF16),
    rounded_step(DType::kBF16, DType::kF16, DType::kBF16, DType::kF16)};

TEST_CASE("cuda: state in 16 bits is rounded by the CPU's random bits") {
  const StepScalars s = scalars_of_powers();
  const DeviceBytes ds = upload(std::vector<StepScalars>{s});
  for (const RoundedStep& c : kRoundedSteps) {
    CAPTURE(dtype_name(c.parameter), dtype_name(c.gradient), dtype_name(c.state),
            dtype_name(c.copy));
    // All its products are by powers of 2, so no rounding error can differ.
    const OptimizerConfig sgd{.type = OptimizerType::kSgd, .momentum = 0.5, .nesterov = true};
    const RoundedResult expected =
        run_case_step(c, false, [&](const FlatUpdate& u) { optimizer_update(u, sgd, s); });
    const RoundedResult found = run_case_step(c, true, [&](const FlatUpdate& u) {
      gpu().optimizer_update(u, sgd, ds.as<StepScalars>(), stream());
    });
    REQUIRE((found.parameters == expected.parameters));
    REQUIRE((found.state1 == expected.state1));
    REQUIRE((found.copy == expected.copy));
    StepScalars other = s;
    ++other.rounding_key;
    const RoundedResult otherwise =
        run_case_step(c, false, [&](const FlatUpdate& u) { optimizer_update(u, sgd, other); });
    REQUIRE((count_differing(otherwise.state1, expected.state1, c.state) > 1000) ==
            (c.state == DType::kBF16));

    const OptimizerConfig adam{.weight_decay = 0.5};
    const RoundedResult by_adam =
        run_case_step(c, false, [&](const FlatUpdate& u) { optimizer_update(u, adam, s); });
    const RoundedResult on_gpu = run_case_step(c, true, [&](const FlatUpdate& u) {
      gpu().optimizer_update(u, adam, ds.as<StepScalars>(), stream());
    });
    REQUIRE((on_gpu.state1 == by_adam.state1));
    REQUIRE((on_gpu.state2 == by_adam.state2));
    // A root, a quotient or a difference may have another last bit of fp32 on the GPU; few of these
    // change the rounding to bf16.
    const auto few = [&](DType dtype) { return dtype == DType::kF32 ? c.count : c.count / 200; };
    REQUIRE(count_differing(on_gpu.parameters, by_adam.parameters, c.parameter) <=
            few(c.parameter));
    REQUIRE(relative_error(from_bytes(on_gpu.parameters, {c.count}, c.parameter),
                           from_bytes(by_adam.parameters, {c.count}, c.parameter)) <
            (c.parameter == DType::kF32 ? 1e-6 : 1e-2));
    REQUIRE(relative_error(from_bytes(on_gpu.copy, {c.count}, c.copy),
                           from_bytes(by_adam.copy, {c.count}, c.copy)) < 1e-2);
  }
}

TEST_CASE(
    "cuda: updates of state in 16 bits have the same bits however their elements are divided") {
  const StepScalars s = scalars_of_powers();
  const DeviceBytes ds = upload(std::vector<StepScalars>{s});
  const RoundedStep c = kRoundedSteps[2];
  const RoundedResult whole = run_case_step(c, true, [&](const FlatUpdate& u) {
    gpu().optimizer_update(u, {}, ds.as<StepScalars>(), stream());
  });
  const RoundedResult cut = run_case_step(c, true, [&](const FlatUpdate& u) {
    for (int64_t begin = 0, count = 0; begin < u.count; begin += count) {
      count = std::min<int64_t>(u.count - begin, begin % 3 == 0 ? 4096 : 999);
      const auto at = [&](const void* data, DType dtype) {
        return static_cast<std::byte*>(const_cast<void*>(data)) + begin * dtype_bytes(dtype);
      };
      FlatUpdate part = u;
      part.parameters = at(u.parameters, u.parameter_dtype);
      part.gradients = at(u.gradients, u.gradient_dtype);
      part.states[0] = at(u.states[0], u.state_dtype);
      part.states[1] = at(u.states[1], u.state_dtype);
      part.copy = at(u.copy, u.copy_dtype);
      part.count = count;
      part.first_element = u.first_element + begin;
      gpu().optimizer_update(part, {}, ds.as<StepScalars>(), stream());
    }
  });
  REQUIRE((cut.parameters == whole.parameters));
  REQUIRE((cut.state1 == whole.state1));
  REQUIRE((cut.state2 == whole.state2));
}

double device_sum(const Array& g, DType dtype) {
  const auto count = static_cast<int64_t>(g.data.size());
  const DeviceBytes dg = upload(g, dtype), sum(8),
                    scratch(gpu().sum_of_squares_scratch_bytes(count));
  gpu().sum_of_squares(dg.data(), dtype, count, false, sum.as<double>(), scratch.data(), stream());
  const double first = read_double(sum);
  gpu().sum_of_squares(dg.data(), dtype, count, true, sum.as<double>(), scratch.data(), stream());
  REQUIRE((read_double(sum) == 2.0 * first || !std::isfinite(first)));
  REQUIRE(scratch.guards_are_intact());
  return first;
}

TEST_CASE(
    "cuda: the sum of squares has the CPU's bits in a block, and agrees to fp64 rounding over any "
    "length") {
  for (const int64_t count :
       {int64_t{1}, int64_t{31}, int64_t{33}, int64_t{1000}, kGradientNormGroup,
        3 * kGradientNormGroup + 77, 300 * kGradientNormGroup + 5})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      CAPTURE(count, dtype_name(dtype));
      const Array g = rounded(random_floats(count, 7), dtype);
      const double expected = sum_of_squares(as_floats(g).data(), DType::kF32, count),
                   actual = device_sum(g, dtype);
      if (count <= kGradientNormGroup)
        REQUIRE(std::memcmp(&actual, &expected, sizeof actual) == 0);
      else
        REQUIRE(actual == Approx(expected).epsilon(1e-13));
    }
}

TEST_CASE("cuda: NaN and infinity anywhere make the sum of squares non-finite") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const size_t at : {size_t{0}, size_t{4095}, size_t{5000}, size_t{8199}}) {
      Array g = random_floats(8200, 3);
      g.data[at] = static_cast<double>(bad);
      REQUIRE_FALSE(std::isfinite(device_sum(g, DType::kF32)));
    }
}

TEST_CASE("cuda: conversions round to nearest even, and conversions back are exact") {
  const Array a = random_floats(5000, 3);
  const DeviceBytes wide = upload(a, DType::kF32), again(4 * 5000);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const DeviceBytes narrow(2 * 5000);
    gpu().convert(wide.data(), DType::kF32, narrow.data(), dtype, 5000, stream());
    gpu().convert(narrow.data(), dtype, again.data(), DType::kF32, 5000, stream());
    REQUIRE((narrow.read() == to_bytes(a, dtype)));
    REQUIRE((download(again, DType::kF32).data == rounded(a, dtype).data));
  }
}

TEST_CASE("cuda: adding into a buffer rounds once, in every mix of dtypes, as on the CPU") {
  const int64_t count = 5000;
  for (const DType to_dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (const DType from_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      CAPTURE(dtype_name(to_dtype), dtype_name(from_dtype));
      std::vector<std::byte> sum = to_bytes(random_floats(count, 4), to_dtype);
      const std::vector<std::byte> more = to_bytes(random_floats(count, 5), from_dtype);
      const DeviceBytes there = upload(sum), addend = upload(more);
      add_into(sum.data(), to_dtype, more.data(), from_dtype, count);
      gpu().add_into(there.data(), to_dtype, addend.data(), from_dtype, count, stream());
      REQUIRE((there.read() == sum));
      REQUIRE(there.guards_are_intact());
    }
}

TEST_CASE("cuda: a captured operation runs again and again, reading what memory then holds",
          "[gpu]") {
  LayerGraph graph;
  graph.values = {
      {"x", DType::kF32, {64, 32}}, {"w", DType::kF32, {16, 32}}, {"y", DType::kF32, {64, 16}}};
  const Op op{OpKind::kLinear, {0, 1}, {2}, NoAttrs{}};
  DeviceBytes x = upload(random_array({64, 32}, 1), DType::kF32),
              w = upload(random_array({16, 32}, 2), DType::kF32);
  const DeviceBytes y(4 * 64 * 16);
  const std::vector<void*> storage{x.data(), w.data(), y.data()};
  gpu().run_ops(graph, {&op, 1}, storage, {},
                stream());  // cuBLAS must initialize outside of a capture
  const std::vector<std::byte> first = y.read();
  gpu().begin_capture(stream());
  gpu().run_ops(graph, {&op, 1}, storage, {}, stream());
  const DeviceGraph captured = gpu().end_capture(stream());
  gpu().fill_zero(y.data(), y.size(), stream());
  gpu().launch(captured, stream());
  REQUIRE((y.read() == first));
  x.write(to_bytes(random_array({64, 32}, 3), DType::kF32).data());
  gpu().launch(captured, stream());
  const std::vector<std::byte> second = y.read();
  REQUIRE((second != first));
  gpu().run_ops(graph, {&op, 1}, storage, {}, stream());
  REQUIRE((y.read() == second));
  gpu().destroy(captured);
}

TEST_CASE("cuda: blocks are added in their order, in fp32 and rounded once") {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16})
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{1003}}) {
      constexpr int kRanks = 5;
      const int64_t stride = (count + 7) / 8 * 8;
      const Array numbers =
          rounded(random_array({kRanks, stride}, static_cast<uint64_t>(count)), dtype);
      const DeviceBytes blocks = upload(numbers, dtype);
      const DeviceBytes out(count * dtype_bytes(dtype));
      gpu().sum_blocks(blocks.data(), kRanks, stride, dtype, count, out.data(), stream());
      const Array found = from_bytes(out.read(), {count}, dtype);
      REQUIRE(out.guards_are_intact());
      for (int64_t i = 0; i < count; ++i) {
        double wide = 0.0;
        float narrow = 0.0F;
        for (int rank = 0; rank < kRanks; ++rank) {
          const double next = numbers.data[static_cast<size_t>(rank * stride + i)];
          wide += next;
          narrow += static_cast<float>(next);
        }
        const double sum = dtype == DType::kF64 ? wide : static_cast<double>(narrow);
        CAPTURE(dtype_name(dtype), count, i);
        REQUIRE(found.data[static_cast<size_t>(i)] ==
                from_bytes(to_bytes(Array{{1}, {sum}}, dtype), {1}, dtype).data[0]);
      }
    }
}

TEST_CASE("cuda: streams wait for events, and pinned memory travels both ways") {
  const DeviceStream other = gpu().create_stream(true);
  const DeviceEvent begin = gpu().create_event(true), end = gpu().create_event(true, true);
  auto* const host = static_cast<int32_t*>(gpu().allocate_pinned(4096));
  for (int32_t i = 0; i < 1024; ++i) host[i] = i;
  const DeviceBytes memory(4096);
  gpu().record(begin, other);
  gpu().copy(memory.data(), host, 4096, other);
  gpu().record(end, other);
  gpu().wait(stream(), end);
  std::vector<int32_t> back(1024);
  std::memcpy(back.data(), memory.read().data(), 4096);
  REQUIRE(back == std::vector<int32_t>(host, host + 1024));
  gpu().synchronize(end);
  REQUIRE(gpu().is_done(end));
  REQUIRE(gpu().milliseconds(begin, end) >= 0.0);
  gpu().free_pinned(host);
  gpu().destroy(begin);
  gpu().destroy(end);
  gpu().destroy(other);
}

TEST_CASE(
    "cuda: the error of too large an allocation says how much was requested and how much is free") {
  const int64_t total = gpu().memory().total_bytes;
  REQUIRE(gpu().memory().free_bytes <= total);
  try {
    gpu().allocate(2 * total);
    FAIL("no error");
  } catch (const Error& e) {
    REQUIRE(e.code() == ExitCode::kEnvironment);
    REQUIRE_THAT(e.message(), Catch::Contains("cannot allocate") && Catch::Contains("are free"));
  }
}

}  // namespace
}  // namespace ftrun::testing

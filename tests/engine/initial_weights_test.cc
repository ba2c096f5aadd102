#include "engine/initial_weights.h"

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TensorInfo tensor_of(const char* name, InitialValues initial) {
  TensorInfo tensor(name, Dims{64, 1024});
  tensor.initial = initial;
  return tensor;
}

std::vector<float> first_values(const TensorInfo& tensor, uint64_t seed, int64_t begin,
                                int64_t end) {
  std::vector<float> out(static_cast<size_t>(end - begin), -7);
  compute_initial_values(tensor, seed, begin, end, out);
  return out;
}

TEST_CASE(
    "initial values depend on seed, name and position, not on the pieces in which they are "
    "requested") {
  const TensorInfo tensor = tensor_of("a", {InitialSource::kUniform, 0.5});
  const std::vector<float> whole = first_values(tensor, 3, 0, tensor.numel());
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {17, 4096}, {65535, 65536}})
    CHECK(first_values(tensor, 3, begin, end) ==
          std::vector<float>(whole.begin() + begin, whole.begin() + end));
  CHECK(first_values(tensor, 4, 0, tensor.numel()) != whole);
  CHECK(first_values(tensor_of("b", tensor.initial), 3, 0, tensor.numel()) != whole);
}

TEST_CASE("random numbers have the requested distribution") {
  struct Moments {
    double mean = 0, deviation = 0, largest = 0;
  };
  const auto moments = [](const std::vector<float>& values) {
    Moments m;
    const auto count = static_cast<double>(values.size());
    for (const float v : values) m.mean += v / count;
    for (const float v : values) m.deviation += (v - m.mean) * (v - m.mean) / count;
    m.deviation = std::sqrt(m.deviation);
    for (const float v : values) m.largest = std::max(m.largest, static_cast<double>(std::abs(v)));
    return m;
  };
  const int64_t count = 64 * 1024;
  const Moments uniform =
      moments(first_values(tensor_of("a", {InitialSource::kUniform, 0.25}), 1, 0, count));
  CHECK(std::abs(uniform.mean) < 0.002);
  CHECK(std::abs(uniform.deviation / (0.25 / std::sqrt(3.0)) - 1) < 0.01);
  CHECK(uniform.largest <= 0.25);
  CHECK(uniform.largest > 0.249);
  const Moments normal =
      moments(first_values(tensor_of("a", {InitialSource::kNormal, 0.125}), 1, 0, count));
  CHECK(std::abs(normal.mean) < 0.002);
  CHECK(std::abs(normal.deviation / 0.125 - 1) < 0.01);
  CHECK(normal.largest > 3.5 * 0.125);
  CHECK(normal.largest < 6 * 0.125);
  CHECK(moments(first_values(tensor_of("a", {InitialSource::kZero}), 1, 0, count)).largest == 0);
}

TEST_CASE(
    "orthogonal initial adapters have normal A and B of deviation 0.1 / sqrt(2), and B A is zero") {
  const int64_t rank = 16, inputs = 300, outputs = 200;
  TensorInfo a("x.q_proj.lora_A.weight", Dims{rank, inputs}),
      b("x.q_proj.lora_B.weight", Dims{outputs, rank});
  a.initial = {InitialSource::kOrthogonalA, 0.1};
  b.initial = {InitialSource::kOrthogonalB, 0.1};
  const std::vector<float> av = first_values(a, 3, 0, a.numel()),
                           bv = first_values(b, 3, 0, b.numel());
  for (const std::vector<float>* values : {&av, &bv}) {
    double squares = 0;
    for (const float v : *values)
      squares += static_cast<double>(v) * v / static_cast<double>(values->size());
    CHECK(std::sqrt(squares) == Approx(0.1 / std::sqrt(2.0)).epsilon(0.1));
  }
  double largest = 0, without_b = 0;
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t j = 0; j < inputs; ++j) {
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < rank; ++k) {
        const double term = static_cast<double>(bv[static_cast<size_t>(o * rank + k)]) *
                            av[static_cast<size_t>(k * inputs + j)];
        sum += term;
        squares += term * term;
      }
      largest = std::max(largest, std::abs(sum));
      without_b = std::max(without_b, std::sqrt(squares));
    }
  CHECK(largest < 1e-8);
  CHECK(without_b > 0.01);
  for (const TensorInfo* tensor : {&a, &b}) {
    const std::vector<float>& whole = tensor == &a ? av : bv;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {17, 1000}, {3199, 3200}})
      CHECK(first_values(*tensor, 3, begin, end) ==
            std::vector<float>(whole.begin() + begin, whole.begin() + end));
    CHECK(first_values(*tensor, 4, 0, tensor->numel()) != whole);
  }
}

}  // namespace
}  // namespace ftrun

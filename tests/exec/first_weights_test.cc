#include "exec/first_weights.h"

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TensorInfo tensor_of(const char* name, Initial initial) {
  TensorInfo tensor(name, Dims{64, 1024});
  tensor.initial = initial;
  return tensor;
}

std::vector<float> made(const TensorInfo& tensor, uint64_t seed, int64_t begin, int64_t end) {
  std::vector<float> out(static_cast<size_t>(end - begin), -7);
  make_elements(tensor, seed, begin, end, out);
  return out;
}

TEST_CASE("values that are made depend on seed, name and place, not on the pieces they are asked for in") {
  const TensorInfo tensor = tensor_of("a", {Initial::Kind::kUniform, 0.5});
  const std::vector<float> whole = made(tensor, 3, 0, tensor.numel());
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {17, 4096}, {65535, 65536}})
    CHECK(made(tensor, 3, begin, end) == std::vector<float>(whole.begin() + begin, whole.begin() + end));
  CHECK(made(tensor, 4, 0, tensor.numel()) != whole);
  CHECK(made(tensor_of("b", tensor.initial), 3, 0, tensor.numel()) != whole);
}

TEST_CASE("they are spread as asked for") {
  struct Moments {
    double mean = 0, deviation = 0, most = 0;
  };
  const auto moments = [](const std::vector<float>& values) {
    Moments m;
    const auto count = static_cast<double>(values.size());
    for (const float v : values) m.mean += v / count;
    for (const float v : values) m.deviation += (v - m.mean) * (v - m.mean) / count;
    m.deviation = std::sqrt(m.deviation);
    for (const float v : values) m.most = std::max(m.most, static_cast<double>(std::abs(v)));
    return m;
  };
  const int64_t count = 64 * 1024;
  const Moments uniform = moments(made(tensor_of("a", {Initial::Kind::kUniform, 0.25}), 1, 0, count));
  CHECK(std::abs(uniform.mean) < 0.002);
  CHECK(std::abs(uniform.deviation / (0.25 / std::sqrt(3.0)) - 1) < 0.01);
  CHECK(uniform.most <= 0.25);
  CHECK(uniform.most > 0.249);
  const Moments normal = moments(made(tensor_of("a", {Initial::Kind::kNormal, 0.125}), 1, 0, count));
  CHECK(std::abs(normal.mean) < 0.002);
  CHECK(std::abs(normal.deviation / 0.125 - 1) < 0.01);
  CHECK(normal.most > 3.5 * 0.125);
  CHECK(normal.most < 6 * 0.125);
  CHECK(moments(made(tensor_of("a", {Initial::Kind::kZero}), 1, 0, count)).most == 0);
}

}  // namespace
}  // namespace ftrun

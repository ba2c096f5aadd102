#include "axes/keys.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "config/ranks.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

constexpr size_t kMaxListed = 8;
constexpr int64_t kMaxTried = 4096;

/// Suggests degrees that divide the quotient of the ranks and the other degrees: ", or write
/// parallel.tensor: 1, 3 or 9".
std::string tensor_degrees(const ResolveState& r) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world_size = r.context.world_size;
  const int64_t other_degrees = model_ranks(mesh) / mesh.tensor;
  if (mesh.tensor == 1 || world_size % other_degrees != 0) return "";
  std::vector<std::string> fitting;
  const int64_t largest_degree = world_size / other_degrees;
  const int64_t max_degree = std::min(largest_degree, kMaxTried);
  for (int64_t degree = 1; degree <= max_degree && fitting.size() < kMaxListed; ++degree)
    if (largest_degree % degree == 0) fitting.push_back(std::to_string(degree));
  const std::string last = fitting.back();
  fitting.pop_back();
  return cat(
      ", or write ",
      r.is_written("parallel.tensor") ? "parallel.tensor: " : "tensor_parallel.autotp_size: ",
      join(fitting, ", "), fitting.empty() ? "" : " or ", last);
}

}  // namespace

constinit const AxisKeys keys::tensor{
    .key = "parallel.tensor",
    .degree = &ParallelConfig::tensor,
    .deepspeed_key = "tensor_parallel.autotp_size",
    .deepspeed_degree = [](const Config& c) { return c.tensor_parallel.autotp_size; },
    .ranks = AxisRanks::kModel,
    .support = AxisSupport::kEmulated,
    .feature = "tensor parallelism",
    .check = nullptr,
    .suggest_degrees = tensor_degrees};

int64_t mesh_sizes::tensor(const Config& config) {
  return std::max<int64_t>(1, config.parallel.tensor);
}

}  // namespace ftrun

#include <algorithm>
#include <string>
#include <vector>

#include "axes/keys.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/ranks.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

/// Merges the two keys of an axis's degree; DeepSpeed's key counts as not set at 0 and 1.
void merge_degree_keys(ResolveState& r, const AxisKeys& axis) {
  if (axis.deepspeed_key.value == nullptr) return;
  const std::string first = axis.key.value, second = axis.deepspeed_key.value;
  int64_t& degree = axis.degree_in(r.config.parallel);
  const int64_t other = axis.deepspeed_degree.value(r.config);
  if (other > 1 && r.is_written(first) && degree != other)
    r.error(second, cat(second, " ", other, " contradicts ", first, " ", degree),
            "keep one of the two");
  else if (other > 1)
    degree = other;
  if (r.is_auto(second)) r.record_decision(second, std::to_string(degree), first);
}

/// Suggests the multiples of `unit` next to a number of ranks: "start 2 or 4 ranks".
std::string nearest_world_sizes_text(int64_t world_size, int64_t unit) {
  const int64_t below = world_size / unit * unit;
  return below == 0 ? cat("start ", unit, " ranks or a multiple of them")
                    : cat("start ", below, " or ", below + unit, " ranks");
}

/// Returns the key under which the degrees are written.
std::string degrees_key(const ResolveState& r) {
  if (r.config.origins.find("parallel") == nullptr)
    for (const AxisKeys* axis : kAxes)
      if (axis->deepspeed_key.value != nullptr && axis->deepspeed_degree.value(r.config) > 1)
        return axis->deepspeed_key.value;
  return "parallel";
}

std::string suggest_degrees(const ResolveState& r) {
  std::string text;
  for (const AxisKeys* axis : kAxes)
    if (axis->suggest_degrees.value != nullptr) text += axis->suggest_degrees.value(r);
  return text;
}

/// Checks that the model-parallel degrees divide the ranks; if they do not, reports it and returns
/// false.
bool check_world_size(ResolveState& r, int64_t ranks_per_model) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world_size = r.context.world_size;
  if (ranks_per_model != 0 && ranks_per_model <= world_size && world_size % ranks_per_model == 0)
    return true;
  const std::string degrees = model_degrees(mesh);
  if (ranks_per_model == 0)
    r.error(degrees_key(r), degrees + " is too large", "lower one of the degrees");
  else
    r.error(degrees_key(r),
            cat(count_text(world_size, "rank"), " cannot be divided by ", degrees,
                degrees.find("×") == std::string::npos ? "" : cat(" = ", ranks_per_model)),
            nearest_world_sizes_text(world_size, ranks_per_model) + suggest_degrees(r));
  return false;
}

void check_data_degree(ResolveState& r, int64_t data, int64_t ranks_per_model) {
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t world_size = r.context.world_size;
  const std::string degrees = model_degrees(mesh);
  if (mesh.data != 0 && mesh.data != data) {
    const double product = static_cast<double>(mesh.data) * static_cast<double>(ranks_per_model);
    r.error("parallel.data",
            cat("parallel.data ", mesh.data,
                degrees.empty() ? "" : cat(" × ", degrees, " = ", number_text(product)), " ≠ ",
                count_text(world_size, "rank")),
            cat("write parallel.data: ", data, " or auto"));
  }
  if (r.is_auto("parallel.data"))
    r.record_decision(
        "parallel.data", std::to_string(data),
        cat(count_text(world_size, "rank"), degrees.empty() ? "" : cat(" / (", degrees, ")")));
}

}  // namespace

void resolve_mesh(ResolveState& r) {
  ParallelConfig& mesh = r.config.parallel;
  for (const AxisKeys* axis : kAxes) merge_degree_keys(r, *axis);
  const int64_t ranks_per_model = model_ranks(mesh);
  if (!check_world_size(r, ranks_per_model)) {
    mesh.data = mesh.data == 0 ? 1 : mesh.data;
    return;
  }
  const int64_t data = r.context.world_size / ranks_per_model;
  check_data_degree(r, data, ranks_per_model);
  mesh.data = data;
  for (const AxisKeys* axis : kAxes)
    if (axis->check.value != nullptr) axis->check.value(r);
}

}  // namespace ftrun

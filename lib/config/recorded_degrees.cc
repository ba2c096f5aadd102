#include "config/recorded_degrees.h"

#include "axes/keys.h"

namespace ftrun {

std::vector<std::pair<std::string, int64_t>> recorded_degrees(const ParallelConfig& mesh) {
  std::vector<std::pair<std::string, int64_t>> topology;
  for (const AxisKeys* axis : kAxes)
    if (axis == &keys::data || axis == &keys::tensor || axis->degree_in(mesh) > 1)
      topology.emplace_back(axis->name(), axis->degree_in(mesh));
  return topology;
}

}  // namespace ftrun

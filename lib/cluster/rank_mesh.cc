#include "cluster/rank_mesh.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

MeshAxis axis_at(int i) {
  return kMeshAxisRows[static_cast<size_t>(i)].axis;
}

}  // namespace

int PerAxis::at(MeshAxis axis) const {
  switch (axis) {
#define FTRUN_MESH_AXIS(kind, name, divided) \
  case MeshAxis::kind:                       \
    return name;
#include "axes/axes.inc"
  }
  return 0;
}

int RankGroup::index_of(int rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end() || *found != rank) return -1;
  return static_cast<int>(found - ranks.begin());
}

std::string RankGroup::name() const {
  if (!is_link()) return cat(label, "@", ranks.front());
  return cat(label, "@", sender, ">", ranks[ranks[0] == sender ? 1 : 0]);
}

MeshAxes RankGroup::axes() const {
  MeshAxes all;
  for (const StridedPlaces& factor : factors) all.add(factor.axes);
  return all;
}

RankMesh::RankMesh(const PerAxis& sizes) : sizes_(sizes) {
  for (int i = kMeshAxes - 1; i >= 0; --i) {
    const int size = sizes_.at(axis_at(i));
    if (size < 1) {
      throw Error(ExitCode::kUsage,
                  cat("the mesh has ", size, " ranks along ", axis_name(axis_at(i))),
                  "use a degree of at least 1 for each kind of parallelism");
    }
    strides_[i] = world_size_;
    world_size_ *= size;
  }
}

int RankMesh::place_along(int rank, MeshAxis axis) const {
  return rank / strides_[static_cast<int>(axis)] % sizes_.at(axis);
}

PerAxis RankMesh::coordinates_of(int rank) const {
  require(rank >= 0 && rank < world_size_, "the rank lies inside the mesh");
  return {
#define FTRUN_MESH_AXIS(kind, name, divided) .name = place_along(rank, MeshAxis::kind),
#include "axes/axes.inc"
  };
}

int RankMesh::rank_at(const PerAxis& coordinate) const {
  int rank = 0;
  for (int i = 0; i < kMeshAxes; ++i) {
    const int index = coordinate.at(axis_at(i));
    require(index >= 0 && index < sizes_.at(axis_at(i)), "the place lies inside the mesh");
    rank += index * strides_[i];
  }
  return rank;
}

int RankMesh::group_size(MeshAxes axes) const {
  int count = 1;
  for (const auto& [axis, name, divided] : kMeshAxisRows)
    if (axes.contains(axis)) count *= size(axis);
  return count;
}

int RankMesh::place_on(int rank, MeshAxes axes) const {
  int at = 0;
  for (const auto& [axis, name, divided] : kMeshAxisRows)
    if (axes.contains(axis)) at = at * size(axis) + place_along(rank, axis);
  return at;
}

std::vector<int> RankMesh::list_line_ranks(MeshAxes axes) const {
  std::vector<int> line{0};
  for (const auto& [axis, name, divided] : kMeshAxisRows) {
    if (!axes.contains(axis) || size(axis) == 1) continue;
    std::vector<int> longer;
    longer.reserve(line.size() * static_cast<size_t>(size(axis)));
    for (const int before : line)
      for (int i = 0; i < size(axis); ++i)
        longer.push_back(before + i * strides_[static_cast<size_t>(axis)]);
    line = std::move(longer);
  }
  return line;
}

StridedPlaces RankMesh::neighbors(MeshAxes axes, int count) const {
  require(count > 0 && group_size(axes) % count == 0, "neighbors divide their axis");
  return {axes, count, 1};
}

StridedPlaces RankMesh::every_kth(MeshAxes axes, int k) const {
  require(k > 0 && group_size(axes) % k == 0, "the distance of members divides their axis");
  return {axes, group_size(axes) / k, k};
}

/// Returns the text "data+context", "data/2" or "(data+context)%4"; leaves out axes of size 1.
std::string RankMesh::label_of(const StridedPlaces& factor) const {
  std::vector<std::string> names;
  for (const auto& [axis, name, divided] : kMeshAxisRows)
    if (size(axis) > 1 && factor.axes.contains(axis)) names.emplace_back(axis_name(axis));
  const std::string line = join(names, "+");
  if (factor.count == group_size(factor.axes)) return line;
  const std::string cut = names.size() > 1 ? cat("(", line, ")") : line;
  return factor.stride == 1 ? cat(cut, "/", factor.count) : cat(cut, "%", factor.stride);
}

RankGroup RankMesh::group_of(int rank, const std::vector<StridedPlaces>& factors) const {
  RankGroup group{.label = "", .ranks = {rank}};
  std::vector<std::string> labels;
  for (StridedPlaces factor : factors) {
    require(!group.axes().intersects(factor.axes), "factors of a group share no axis");
    if (factor.count == 1) continue;
    const int block = factor.count * factor.stride, own = place_on(rank, factor.axes);
    const int first = own / block * block + own % factor.stride;
    const std::vector<int> line = list_line_ranks(factor.axes);
    std::vector<int> wider;
    wider.reserve(group.ranks.size() * static_cast<size_t>(factor.count));
    for (const int base : group.ranks)
      for (int i = 0; i < factor.count; ++i)
        wider.push_back(base + line[static_cast<size_t>(first + i * factor.stride)] -
                        line[static_cast<size_t>(own)]);
    group.ranks = std::move(wider);
    labels.push_back(label_of(factor));
    for (const auto& [axis, name, divided] : kMeshAxisRows)
      if (size(axis) == 1) factor.axes.remove({axis});
    group.factors.push_back(factor);
  }
  if (!std::is_sorted(group.ranks.begin(), group.ranks.end()))
    std::sort(group.ranks.begin(), group.ranks.end());
  group.label = join(labels, "+");
  return group;
}

int RankMesh::rank_moved_to(int rank, MeshAxis axis, int to) const {
  require(to >= 0 && to < size(axis), "the place lies inside the mesh");
  return rank + (to - place_along(rank, axis)) * strides_[static_cast<int>(axis)];
}

RankGroup RankMesh::make_link(int from, int to, MeshAxis axis) const {
  const int low = place_along(std::min(from, to), axis),
            high = place_along(std::max(from, to), axis);
  require(from != to && rank_moved_to(from, axis, place_along(to, axis)) == to,
          "a link runs along one axis");
  return {.label = std::string(axis_name(axis)),
          .ranks = {std::min(from, to), std::max(from, to)},
          .sender = from,
          .factors = {{{axis}, 2, high - low}}};
}

RankGroup RankMesh::group_of_ends(int rank, MeshAxis axis) const {
  const int first = rank_moved_to(rank, axis, 0), last = size(axis) - 1;
  return {.label = cat(axis_name(axis), "/ends"),
          .ranks = {first, rank_moved_to(rank, axis, last)},
          .factors = {{{axis}, 2, last}}};
}

std::vector<RankGroup> RankMesh::list_groups(MeshAxes axes) const {
  std::vector<RankGroup> all;
  for (int rank = 0; rank < world_size_; ++rank) {
    RankGroup group = group_of(rank, axes);
    if (group.ranks.front() == rank) all.push_back(std::move(group));
  }
  return all;
}

}  // namespace ftrun

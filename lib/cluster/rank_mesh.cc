#include "cluster/rank_mesh.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

constexpr std::array<MeshAxis, kMeshAxes> kAxes = {MeshAxis::kPipeline, MeshAxis::kReplicate,
                                                   MeshAxis::kShard, MeshAxis::kContext,
                                                   MeshAxis::kTensor};

/// Axes of size 1 say nothing.
std::string group_name(std::initializer_list<MeshAxis> axes, const MeshPoint& sizes,
                       int lowest_rank) {
  std::vector<std::string> names;
  for (const MeshAxis axis : kAxes) {
    if (sizes.at(axis) > 1 && std::find(axes.begin(), axes.end(), axis) != axes.end())
      names.emplace_back(axis_name(axis));
  }
  return cat(join(names, "+"), "@", lowest_rank);
}

}  // namespace

std::string_view axis_name(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kPipeline:
      return "pp";
    case MeshAxis::kReplicate:
      return "dp_replicate";
    case MeshAxis::kShard:
      return "dp_shard";
    case MeshAxis::kContext:
      return "cp";
    case MeshAxis::kTensor:
      return "tp";
  }
  return "?";
}

int MeshPoint::at(MeshAxis axis) const {
  switch (axis) {
    case MeshAxis::kPipeline:
      return pp;
    case MeshAxis::kReplicate:
      return dp_replicate;
    case MeshAxis::kShard:
      return dp_shard;
    case MeshAxis::kContext:
      return cp;
    case MeshAxis::kTensor:
      return tp;
  }
  return 0;
}

int RankGroup::index_of(int rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end() || *found != rank) return -1;
  return static_cast<int>(found - ranks.begin());
}

std::string axes_of(const RankGroup& group) { return group.name.substr(0, group.name.find('@')); }

RankMesh::RankMesh(const MeshPoint& sizes) : sizes_(sizes) {
  for (int i = kMeshAxes - 1; i >= 0; --i) {
    const int size = sizes_.at(kAxes[i]);
    if (size < 1) {
      throw Error(ExitCode::kUsage,
                  cat("the mesh has ", size, " ranks along ", axis_name(kAxes[i])),
                  "every degree of parallelism is at least 1");
    }
    strides_[i] = world_;
    world_ *= size;
  }
}

int RankMesh::place(int rank, MeshAxis axis) const {
  return rank / strides_[static_cast<int>(axis)] % sizes_.at(axis);
}

MeshPoint RankMesh::coordinate(int rank) const {
  require(rank >= 0 && rank < world_, "rank outside the mesh");
  return {.pp = place(rank, MeshAxis::kPipeline),
          .dp_replicate = place(rank, MeshAxis::kReplicate),
          .dp_shard = place(rank, MeshAxis::kShard),
          .cp = place(rank, MeshAxis::kContext),
          .tp = place(rank, MeshAxis::kTensor)};
}

int RankMesh::rank_at(const MeshPoint& place) const {
  int rank = 0;
  for (int i = 0; i < kMeshAxes; ++i) {
    const int index = place.at(kAxes[i]);
    require(index >= 0 && index < sizes_.at(kAxes[i]), "place outside the mesh");
    rank += index * strides_[i];
  }
  return rank;
}

RankGroup RankMesh::group_of(int rank, std::initializer_list<MeshAxis> axes) const {
  int lowest = rank;
  for (const MeshAxis axis : axes) lowest -= place(rank, axis) * strides_[static_cast<int>(axis)];
  std::vector<int> ranks = {lowest};
  for (const MeshAxis axis : axes) {
    std::vector<int> wider;
    for (const int base : ranks) {
      for (int i = 0; i < size(axis); ++i)
        wider.push_back(base + i * strides_[static_cast<int>(axis)]);
    }
    ranks = std::move(wider);
  }
  std::sort(ranks.begin(), ranks.end());
  return {group_name(axes, sizes_, lowest), std::move(ranks)};
}

RankGroup RankMesh::neighbours_of(int rank, MeshAxis axis, int count) const {
  require(count > 0 && size(axis) % count == 0, "neighbours divide their axis");
  const int stride = strides_[static_cast<int>(axis)];
  const int lowest = rank - place(rank, axis) % count * stride;
  RankGroup group{cat(axis_name(axis), "/", count, "@", lowest), {}};
  for (int i = 0; i < count; ++i) group.ranks.push_back(lowest + i * stride);
  return group;
}

int RankMesh::moved(int rank, MeshAxis axis, int to) const {
  require(to >= 0 && to < size(axis), "place outside the mesh");
  return rank + (to - place(rank, axis)) * strides_[static_cast<int>(axis)];
}

RankGroup RankMesh::link(int from, int to, MeshAxis axis) const {
  require(from != to && moved(from, axis, place(to, axis)) == to, "a link runs along one axis");
  return {cat(axis_name(axis), "@", from, ">", to), {std::min(from, to), std::max(from, to)}, from};
}

RankGroup RankMesh::ends_of(int rank, MeshAxis axis) const {
  const int first = moved(rank, axis, 0);
  return {cat(axis_name(axis), "/ends@", first), {first, moved(rank, axis, size(axis) - 1)}};
}

std::vector<RankGroup> RankMesh::groups(std::initializer_list<MeshAxis> axes) const {
  std::vector<RankGroup> all;
  for (int rank = 0; rank < world_; ++rank) {
    RankGroup group = group_of(rank, axes);
    if (group.ranks.front() == rank) all.push_back(std::move(group));
  }
  return all;
}

std::string RankMesh::place_text(int rank) const {
  std::vector<std::string> parts;
  for (const MeshAxis axis : kAxes) {
    if (size(axis) > 1) parts.push_back(cat(axis_name(axis), " ", place(rank, axis)));
  }
  const std::string where = parts.empty() ? "" : " (" + join(parts, ", ") + ")";
  return cat("rank ", rank, where);
}

}  // namespace ftrun

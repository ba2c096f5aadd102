#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "axes/mesh_axis.h"

namespace ftrun {

/// PerAxis holds one number for each axis: its size, or the place of a rank along it.
struct PerAxis {
#define FTRUN_MESH_AXIS(kind, name, divided) int name = 0;
#include "axes/axes.inc"

  int at(MeshAxis axis) const;
  bool operator==(const PerAxis&) const = default;
};

/// StridedPlaces selects places of one line of ranks: `count` places, `stride` apart. The line runs
/// along all of `axes` as if they were one axis; along it the fastest of these axes varies fastest.
struct StridedPlaces {
  MeshAxes axes;
  int count = 1;
  int stride = 1;
  bool operator==(const StridedPlaces&) const = default;
};

/// RankGroup is a set of ranks that communicate with each other, in ascending order: the Cartesian
/// product of the places that `factors` select.
struct RankGroup {
  /// The name of such groups in plans and messages: "data+context", "data/2", "pipeline/ends".
  std::string label;
  std::vector<int> ranks;
  /// The rank that sends on a link between two ranks; the other receives. -1 for other groups.
  int sender = -1;
  /// The factors with two or more places; no two of them share an axis.
  std::vector<StridedPlaces> factors = {};

  bool is_link() const { return sender >= 0; }
  int size() const { return static_cast<int>(ranks.size()); }
  /// Returns the index of a global rank in the group, -1 if it is not a member.
  int index_of(int rank) const;
  /// Returns a name that is unique in the mesh and the same on every member: "data+context@4" is
  /// the group along data and context whose lowest rank is 4, "pipeline@3>7" the link from rank 3
  /// to rank 7.
  std::string name() const;
  /// Returns the axes along which the group's ranks differ.
  MeshAxes axes() const;
  /// Returns whether the group's ranks differ along this axis, or along some of these axes and no
  /// others.
  bool runs_along(MeshAxis axis) const { return axes().contains(axis); }
  bool runs_within(MeshAxes some) const { return !axes().empty() && some.contains(axes()); }
};

/// RankMesh is the grid of ranks. It computes places and groups when they are asked for and stores
/// nothing for each rank, so 16,384 ranks cost no more than two.
class RankMesh {
 public:
  /// Makes a mesh of these sizes. Throws Error(kUsage) unless every size is at least 1.
  explicit RankMesh(const PerAxis& sizes);

  int world_size() const { return world_size_; }
  int size(MeshAxis axis) const { return sizes_.at(axis); }
  /// Returns the number of ranks that read different sequences: data_replicate x data.
  int data_parallel_size() const { return group_size(axes_that_divide(DividedParts::kSequences)); }
  const PerAxis& sizes() const { return sizes_; }

  PerAxis coordinates_of(int rank) const;
  int rank_at(const PerAxis& coordinate) const;
  /// Returns a rank's place on the line along all of `axes` as if they were one axis; group_size()
  /// returns the number of ranks on that line.
  int place_on(int rank, MeshAxes axes) const;
  int group_size(MeshAxes axes) const;
  /// Returns the group of `rank` along `axes`: the ranks whose coordinates differ from its own only
  /// along these axes.
  RankGroup group_of(int rank, MeshAxes axes) const { return group_of(rank, {all_places(axes)}); }
  /// Returns the group of `rank` as the product of factors. Each divides its line into blocks of
  /// count x stride places; the members in a block are the rank's place and every stride-th place
  /// before and after it.
  RankGroup group_of(int rank, const std::vector<StridedPlaces>& factors) const;
  /// Makes a factor of the line along `axes`: all_places() selects all places, neighbors() the
  /// `count` adjacent places [k * count, (k + 1) * count), every_kth() every k-th place. `count`
  /// and `k` divide the line's length.
  StridedPlaces all_places(MeshAxes axes) const { return {axes, group_size(axes), 1}; }
  StridedPlaces neighbors(MeshAxes axes, int count) const;
  StridedPlaces every_kth(MeshAxes axes, int k) const;
  /// Makes the group of two ranks that differ only along `axis`; the first sends to the second.
  RankGroup make_link(int from, int to, MeshAxis axis) const;
  /// Returns the group of the two ranks at the first and the last place of an axis that have the
  /// coordinates of `rank` along all other axes: "pipeline/ends".
  RankGroup group_of_ends(int rank, MeshAxis axis) const;
  /// Returns the rank at `place` along an axis that has the coordinates of `rank` along all other
  /// axes.
  int rank_moved_to(int rank, MeshAxis axis, int place) const;
  /// Lists all groups along `axes`, by lowest rank; every rank is in exactly one of them.
  std::vector<RankGroup> list_groups(MeshAxes axes) const;

 private:
  int place_along(int rank, MeshAxis axis) const;
  /// Lists the ranks on the line along `axes` that begins at rank 0, by their place on the line.
  std::vector<int> list_line_ranks(MeshAxes axes) const;
  std::string label_of(const StridedPlaces& factor) const;

  PerAxis sizes_;
  std::array<int, kMeshAxes> strides_{};
  int world_size_ = 1;
};

}  // namespace ftrun

#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// The axes of the mesh, slowest to fastest: neighbours along a fast axis have neighbouring ranks,
/// which launchers place on one machine.
enum class MeshAxis : int { kPipeline, kReplicate, kShard, kContext, kTensor };
inline constexpr int kMeshAxes = 5;
/// "pp", "dp_replicate", "dp_shard", "cp", "tp".
std::string_view axis_name(MeshAxis axis);

/// MeshPoint is one number for each axis: a size, or the place of a rank.
struct MeshPoint {
  int pp = 0;
  int dp_replicate = 0;
  int dp_shard = 0;
  int cp = 0;
  int tp = 0;

  int at(MeshAxis axis) const;
  bool operator==(const MeshPoint&) const = default;
};

/// Ranks that communicate with each other, ascending. `name` is unique in the mesh and the same on
/// every member: "dp_shard+cp@4" is the group along dp_shard and cp whose lowest rank is 4.
struct RankGroup {
  std::string name;
  std::vector<int> ranks;
  /// The rank that sends on a link between two ranks; the other receives. Else -1.
  int sender = -1;

  bool is_link() const { return sender >= 0; }
  int size() const { return static_cast<int>(ranks.size()); }
  /// Place of a global rank in the group, -1 when it is no member.
  int index_of(int rank) const;
};

/// The axes in a group's name: "dp_shard+cp".
std::string axes_of(const RankGroup& group);

/// Ranks as a grid. Pure arithmetic: describes 16,384 ranks as well as two.
class RankMesh {
 public:
  /// Error(kUsage) unless every size is at least 1.
  explicit RankMesh(const MeshPoint& sizes);

  int world() const { return world_; }
  int size(MeshAxis axis) const { return sizes_.at(axis); }
  /// Ranks that hold different samples: dp_replicate * dp_shard.
  int data_parallel() const { return sizes_.dp_replicate * sizes_.dp_shard; }
  const MeshPoint& sizes() const { return sizes_; }

  MeshPoint coordinate(int rank) const;
  int rank_at(const MeshPoint& place) const;
  /// The group of `rank` along `axes`: the ranks whose places differ from its own only there.
  RankGroup group_of(int rank, std::initializer_list<MeshAxis> axes) const;
  /// The `count` neighbours [k, k+1) x count of the group of `rank` along `axis` that it is among:
  /// "dp_shard/2@4". `count` divides the axis.
  RankGroup neighbours_of(int rank, MeshAxis axis, int count) const;
  /// Two ranks that differ along `axis` alone, of which the first sends to the second: "pp@3>7".
  RankGroup link(int from, int to, MeshAxis axis) const;
  /// The ends of an axis for the rank: those whose places along it are the first and the last,
  /// "pp/ends@3".
  RankGroup ends_of(int rank, MeshAxis axis) const;
  /// The rank at another place along an axis.
  int moved(int rank, MeshAxis axis, int place) const;
  /// All groups along `axes`, by lowest rank; every rank is in exactly one.
  std::vector<RankGroup> groups(std::initializer_list<MeshAxis> axes) const;
  /// "rank 5 (pp 1, dp_shard 2)": axes of size 1 are left out.
  std::string place_text(int rank) const;

 private:
  int place(int rank, MeshAxis axis) const;

  MeshPoint sizes_;
  std::array<int, kMeshAxes> strides_{};
  int world_ = 1;
};

}  // namespace ftrun

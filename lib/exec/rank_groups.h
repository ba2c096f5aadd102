#pragma once

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "program/program.h"

namespace ftrun {

/// The communicators of a rank's groups, borrowed. Without hybrid sharding all ranks share one copy
/// of the state, so `shard` is `data` and there is no `replica`; without secondary shards there is no
/// `node`. Among GPUs these move device memory, and there are two more for what host code holds.
struct RankGroups {
  Communicator* data = nullptr;
  Communicator* shard = nullptr;
  Communicator* replica = nullptr;
  Communicator* node = nullptr;
  /// Null: `data` and `shard` move host memory themselves.
  Communicator* host_data = nullptr;
  Communicator* host_shard = nullptr;

  static RankGroups of_one(Communicator& group) { return {&group, &group}; }

  Communicator& words() const { return host_data != nullptr ? *host_data : *data; }
  Communicator& shard_words() const { return host_shard != nullptr ? *host_shard : *shard; }

  /// Those that are open, each once.
  std::vector<Communicator*> distinct() const {
    std::vector<Communicator*> open;
    for (Communicator* group : {data, shard, replica, node, host_data, host_shard})
      if (group != nullptr && std::find(open.begin(), open.end(), group) == open.end()) open.push_back(group);
    return open;
  }

  /// The one whose memory peers of this machine can see: the largest of shared memory.
  Communicator& seen_by_peers() const {
    for (Communicator* group : distinct())
      if (group->backend() == "shm") return *group;
    return *data;
  }

  /// Null when it is not open.
  Communicator* find(CommGroup group) const {
    if (group == CommGroup::kShard) return shard;
    if (group == CommGroup::kReplica) return replica;
    return group == CommGroup::kNode ? node : data;
  }

  Communicator& of(CommGroup group) const {
    Communicator* found = find(group);
    require(found != nullptr, "the group of a collective is open");
    return *found;
  }
};

}  // namespace ftrun

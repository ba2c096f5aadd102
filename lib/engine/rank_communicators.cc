#include "engine/rank_communicators.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ftrun {

std::vector<Communicator*> RankCommunicators::distinct_communicators() const {
  std::vector<Communicator*> all = group_communicators;
  for (Communicator* group : {host_world, host_model})
    if (group != nullptr && std::find(all.begin(), all.end(), group) == all.end())
      all.push_back(group);
  return all;
}

Communicator& RankCommunicators::shared_memory_communicator() const {
  Communicator* largest = host_world;
  for (Communicator* group : distinct_communicators())
    if (group->backend() == "shm" &&
        (largest->backend() != "shm" || group->size() > largest->size()))
      largest = group;
  return *largest;
}

Communicator* RankCommunicators::find_communicator(const ProgramGroup& group) const {
  for (Communicator* candidate : group_communicators)
    if (candidate->members() == group.members.ranks &&
        (!group.members.is_link() || candidate->name() == group.members.name()))
      return candidate;
  return nullptr;
}

Communicator* OwnedCommunicators::open(Rendezvous& rendezvous, const RankGroup& group,
                                       const std::string& prefix, const CommOptions& options) {
  CommOptions own = options;
  own.carries_messages = group.is_link();
  owned_.push_back(open_communicator(rendezvous, prefix + group.name(), group.ranks, own));
  return owned_.back().get();
}

OwnedCommunicators::OwnedCommunicators(Rendezvous& rendezvous,
                                       const std::vector<ProgramGroup>& groups, GroupId model,
                                       CommOptions options) {
  communicators_.board = &rendezvous.board();
  const RankGroup alone{"alone", {rendezvous.rank()}};
  // A single rank exchanges with no other rank, so it needs no NCCL.
  if (groups.empty()) options.device = -1;
  for (const ProgramGroup& group : groups)
    communicators_.group_communicators.push_back(open(rendezvous, group.members, "", options));
  const auto host_group = [&](GroupId id) {
    const bool host = id != kNoGroup && options.device < 0;
    if (host) return communicators_.group_communicators[static_cast<size_t>(id)];
    CommOptions on_host = options;
    on_host.device = -1;
    on_host.sum_blocks = {};
    on_host.backend = CommBackend::kAuto;
    const RankGroup& ranks = id == kNoGroup ? alone : groups[static_cast<size_t>(id)].members;
    return open(rendezvous, ranks, "host ", on_host);
  };
  communicators_.host_world = host_group(groups.empty() ? kNoGroup : 0);
  communicators_.host_model =
      model == 0 || groups.empty() ? communicators_.host_world : host_group(model);
}

void OwnedCommunicators::close() {
  for (auto group = owned_.rbegin(); group != owned_.rend(); ++group) (*group)->shutdown();
}

}  // namespace ftrun

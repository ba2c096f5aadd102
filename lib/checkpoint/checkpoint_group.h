#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ftrun {

/// CheckpointGroup is the group of ranks that save or load a checkpoint together, with the
/// collective of the caller's communicator.
struct CheckpointGroup {
  int rank = 0;
  int world_size = 1;
  /// The collective that gives every rank the texts of all ranks, in rank order. May throw if a
  /// peer is lost; clean_checkpoints() then removes the unfinished save.
  std::function<std::vector<std::string>(const std::string& text)> all_gather =
      [](const std::string& text) { return std::vector<std::string>{text}; };
};

/// Runs `work` on this rank and gives every rank the texts that all ranks' work returned, in rank
/// order. Collective. If the work of some ranks threw, every rank throws the Error of the lowest of
/// them (as a RankError, which names that rank), with `what` and the rank in front of its message.
std::vector<std::string> run_on_all_ranks(const CheckpointGroup& group, const std::string& what,
                                          const std::function<std::string()>& work);

}  // namespace ftrun

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
  /// The collective that gives every rank the texts of all ranks, in rank order. May throw when a
  /// peer is lost; clean_checkpoints() then removes what was begun.
  std::function<std::vector<std::string>(const std::string& text)> all_gather =
      [](const std::string& text) { return std::vector<std::string>{text}; };
};

/// Runs `work` on this rank and gives every rank the texts that all ranks' work returned, in rank
/// order. Collective. When the work of any rank threw, every rank throws the Error of the lowest
/// such rank (RankError, which names it), its message preceded by `what` and the rank.
std::vector<std::string> run_together(const CheckpointGroup& group, const std::string& what,
                                      const std::function<std::string()>& work);

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/bound.h"
#include "search/candidates.h"
#include "search/evaluate.h"
#include "search/layout.h"
#include "search/search_task.h"

namespace ftrun {

/// PlainChoice is a simple setting that a user might choose ("ZeRO 1", "tensor 2"), and a test
/// whether a layout has it.
struct PlainChoice {
  std::string name;
  std::function<bool(const Layout&)> matches;
};

/// PlainChoiceComparison compares a simple setting that a user might choose with the best layout
/// that the search found.
struct PlainChoiceComparison {
  /// The choice: "ZeRO 1", "tensor 2", "recompute full".
  std::string choice;
  /// The best layout has this choice.
  bool is_chosen = false;
  /// The fastest planned layout with the choice or, if none fits, one that needs the least memory.
  /// Absent if no layout with the choice is legal, or if all of them need too much memory according
  /// to their bounds.
  std::optional<Evaluation> best;
  /// The minimum memory and time of the choice's legal layouts, by their bounds.
  std::optional<Bound> bound;
  /// Some of the choice's legal layouts may fit, according to their bounds.
  bool may_fit = false;
  /// The number of ranks on a node in the legal layout whose bound on device memory is lowest.
  int64_t ranks = 1;
  /// The first reason for a refusal, if no layout with the choice is legal.
  std::string refusal;
};

/// PlainChoices holds the plain choices of a search, in the order in which guides name them, and
/// explains why the best layout has or lacks each of them.
class PlainChoices {
 public:
  /// Makes the choices that some of `layouts` may have. `task` must outlive this object.
  PlainChoices(const SearchTask& task, const std::vector<Layout>& layouts);

  const std::vector<PlainChoice>& all() const { return choices_; }
  /// Notes why a layout is refused: the first reason explains the choices that it has.
  void note_refusal(const Layout& layout, const std::string& why);
  /// Compares each choice with the first layout of `ranking`. Choices that no layout of the machine
  /// has are left out.
  std::vector<PlainChoiceComparison> compare(const Candidates& candidates,
                                             const std::vector<Evaluation>& ranking) const;

 private:
  void set_bound(const Candidates& candidates, const std::vector<size_t>& numbers,
                 PlainChoiceComparison& why) const;

  const SearchTask& task_;
  std::vector<PlainChoice> choices_;
  /// The first reason for which a layout of each choice was refused.
  std::vector<std::string> refusals_;
};

}  // namespace ftrun

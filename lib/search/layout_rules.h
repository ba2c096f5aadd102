#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "search/layout.h"
#include "search/search_task.h"
#include "search/state_facts.h"

namespace ftrun {

/// LayoutRules specifies which layouts of a task are legal. Instead of calling try_layout() for
/// every layout, it calls it for single aspects: the schedule and the micro-batches on each mesh,
/// the tiers of the state on each mesh, recompute on each mesh, and all of these together once for
/// each combination of kinds (tests/search compares it with try_layout()).
class LayoutRules {
 public:
  /// Borrows `task`.
  explicit LayoutRules(const SearchTask& task) : task_(task) {}

  /// Verdict is the judgement of a layout. Its pointers are valid as long as the rules exist.
  struct Verdict {
    /// The reason for the refusal; null where the layout is legal.
    const std::string* refusal = nullptr;
    /// The facts that the bounds of a legal layout need; null where it is refused.
    const StateFacts* facts = nullptr;
  };
  /// Judges a layout of the task by results of try_layout(), which it calls for those that are not
  /// known yet.
  Verdict of(const Layout& layout);

  /// Returns the number of layouts for which try_layout() was called.
  int64_t asked() const { return static_cast<int64_t>(tried_.size()); }

 private:
  /// TryResult is the result of try_layout() for one layout: a refusal, or facts.
  struct TryResult {
    std::string refusal;
    StateFacts facts;

    bool is_legal() const { return refusal.empty(); }
  };
  /// KindKey has the ranks of a layout, and the layout with its numbers as 0 (for 1) or 1 (for
  /// more).
  using KindKey = std::pair<int64_t, Layout>;
  /// MeshKey has the data, tensor and pipeline ranks of a mesh.
  using MeshKey = std::array<int64_t, 3>;
  /// LegalStart holds a legal layout on a mesh, where one was found; else the refusal of the
  /// plainest.
  struct LegalStart {
    std::optional<Layout> layout;
    const TryResult* first = nullptr;
  };

  const TryResult& result_of(const Layout& layout);
  const LegalStart& legal_start_of(const Layout& layout);
  const TryResult& of_kind(const Layout& layout);

  const SearchTask& task_;
  std::map<Layout, TryResult> tried_;
  std::map<MeshKey, LegalStart> bases_;
  std::map<KindKey, const TryResult*> kinds_;
};

}  // namespace ftrun

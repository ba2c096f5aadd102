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

/// LayoutRules says which layouts of a task are legal. It asks try_layout() about their aspects
/// instead of about each: about the schedule and the micro-batches on each mesh, the places of the
/// state on each mesh, recompute on each mesh, and all of these together once for each combination
/// of kinds (tests/search compares it with try_layout()).
class LayoutRules {
 public:
  /// `task` is borrowed.
  explicit LayoutRules(const SearchTask& task) : task_(task) {}

  /// Verdict is what is known of a layout; its pointers last as long as the rules.
  struct Verdict {
    /// Null where the layout is legal.
    const std::string* refusal = nullptr;
    /// The facts that the bounds of a legal layout need; null where it is refused.
    const StateFacts* facts = nullptr;
  };
  /// Judges a layout of the task, by answers of try_layout() that it asks for where they are new.
  Verdict of(const Layout& layout);

  /// Layouts that try_layout() was asked about.
  int64_t asked() const { return static_cast<int64_t>(tried_.size()); }

 private:
  /// Tried is the answer for one layout: a refusal, or facts.
  struct Tried {
    std::string refusal;
    StateFacts facts;

    bool is_legal() const { return refusal.empty(); }
  };
  using LayoutKey = std::array<int64_t, 12>;
  /// The kinds of a layout's mesh, schedule, micro-batches, state and recompute.
  using KindKey = std::array<int64_t, 13>;
  /// The data, tensor and pipeline ranks of a mesh.
  using MeshKey = std::array<int64_t, 3>;
  /// A mesh with a layout on it that is legal, where one was found; else the refusal of the
  /// plainest.
  struct Base {
    std::optional<Layout> layout;
    const Tried* first = nullptr;
  };

  const Tried& ask(const Layout& layout);
  const Base& base_of(const Layout& layout);
  const Tried& of_kind(const Layout& layout);

  const SearchTask& task_;
  std::map<LayoutKey, Tried> tried_;
  std::map<MeshKey, Base> bases_;
  std::map<KindKey, const Tried*> kinds_;
};

}  // namespace ftrun

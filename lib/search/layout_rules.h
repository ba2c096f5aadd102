#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "search/layout.h"
#include "search/search_task.h"
#include "search/state_properties.h"

namespace ftrun {

/// LayoutRules decides which layouts of a task are allowed. It does not call resolve_layout() for
/// every layout, but for single aspects on each mesh: the schedule with the micro-batches, the
/// offload of the state, and recompute. In addition it calls resolve_layout() once for each kind of
/// complete layout (LayoutKindKey). tests/search compares the results with those of
/// resolve_layout().
class LayoutRules {
 public:
  /// Makes an object without results. `task` must outlive it.
  explicit LayoutRules(const SearchTask& task) : task_(task) {}

  /// Judgement says whether a layout is allowed. Its pointers are valid as long as the rules exist.
  struct Judgement {
    /// The reason for the refusal; null if the layout is allowed.
    const std::string* refusal = nullptr;
    /// The properties that the bounds of an allowed layout need; null if the layout is refused.
    const StateProperties* properties = nullptr;
  };
  /// Judges a layout of the task by results of resolve_layout(); calls it for results that are not
  /// known yet.
  Judgement judge(const Layout& layout);

  /// Returns the number of layouts for which resolve_layout() was called.
  int64_t resolved_layouts() const { return static_cast<int64_t>(resolved_.size()); }

 private:
  /// ResolveResult is the result of resolve_layout() for one layout: a refusal, or properties.
  struct ResolveResult {
    std::string refusal;
    StateProperties properties;

    bool is_allowed() const { return refusal.empty(); }
  };
  /// LayoutKindKey is the number of ranks of a layout, and the layout with each of its numbers
  /// replaced by 0 (if it is 1) or 1 (if it is more).
  using LayoutKindKey = std::pair<int64_t, Layout>;
  /// MeshKey is the data, tensor and pipeline degree of a mesh.
  using MeshKey = std::array<int64_t, 3>;
  /// MeshTrial holds an allowed layout on a mesh, if one was found, and the result for the
  /// first layout that was tried, which explains a refusal.
  struct MeshTrial {
    std::optional<Layout> layout;
    const ResolveResult* first_tried = nullptr;
  };

  const ResolveResult& resolve_once(const Layout& layout);
  const MeshTrial& allowed_example_on_mesh_of(const Layout& layout);
  const ResolveResult& result_of_kind(const Layout& layout);

  const SearchTask& task_;
  std::map<Layout, ResolveResult> resolved_;
  std::map<MeshKey, MeshTrial> allowed_examples_;
  std::map<LayoutKindKey, const ResolveResult*> kinds_;
};

}  // namespace ftrun

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/bound.h"
#include "search/candidates.h"
#include "search/layout.h"
#include "search/plan_layout.h"
#include "search/search_task.h"

namespace ftrun {

/// CommonSetting is a simple setting that a user might choose ("ZeRO 1", "tensor 2"), and a test
/// whether a layout has it.
struct CommonSetting {
  std::string name;
  std::function<bool(const Layout&)> matches;
};

/// CommonSettingComparison compares a simple setting that a user might choose with the best layout
/// that the search found.
struct CommonSettingComparison {
  /// The setting: "ZeRO 1", "tensor 2", "recompute full".
  std::string setting;
  /// Says whether the best layout has this setting.
  bool is_chosen = false;
  /// The fastest planned layout with the setting or, if none fits, one that needs the least memory.
  /// Absent if no layout with the setting is allowed, or if all of them need too much memory
  /// according to their bounds.
  std::optional<PlannedLayout> best;
  /// The minimum memory and time of the setting's allowed layouts, by their bounds.
  std::optional<LayoutBound> bound;
  /// Says whether some of the setting's allowed layouts may fit, according to their bounds.
  bool may_fit = false;
  /// The number of ranks on a node in the allowed layout whose bound on device memory is lowest.
  int64_t ranks = 1;
  /// The first reason for a refusal, if no layout with the setting is allowed.
  std::string refusal;
};

/// CommonSettings holds the common settings of a search, in the order in which guides name them,
/// and explains why the best layout has or lacks each of them.
class CommonSettings {
 public:
  /// Makes the settings that some of `layouts` may have. `task` must outlive this object.
  CommonSettings(const SearchTask& task, const std::vector<Layout>& layouts);

  const std::vector<CommonSetting>& all() const { return settings_; }
  /// Records why a layout is refused: the first reason explains the settings that it has.
  void add_refusal(const Layout& layout, const std::string& reason);
  /// Compares each setting with the first layout of `ranking`. Settings that no layout of the
  /// machine has are left out.
  std::vector<CommonSettingComparison> compare(const Candidates& candidates,
                                               const std::vector<PlannedLayout>& ranking) const;

 private:
  void set_bound(const Candidates& candidates, const std::vector<size_t>& numbers,
                 CommonSettingComparison& comparison) const;

  const SearchTask& task_;
  std::vector<CommonSetting> settings_;
  /// The first reason for which a layout of each setting was refused.
  std::vector<std::string> refusals_;
};

}  // namespace ftrun

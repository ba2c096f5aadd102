#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "config/config.h"
#include "search/layout.h"
#include "search/search_task.h"

namespace ftrun {

/// Lists all layouts of a task whose numbers are consistent: degrees whose product is a number of
/// ranks that the machine offers, micro-batches that make up the task's batch, every ZeRO stage
/// with every offload target, every schedule and recompute level. The simplest layouts come first.
/// The disk is an offload target only if the config names a folder for it.
std::vector<Layout> list_layouts(const SearchTask& task);

/// Resolves the task's config with a layout, as `ftrun plan` does. Returns the config, or the
/// reason why the checks in config/resolve or of the model refuse it.
std::variant<Config, std::string> resolve_layout(const SearchTask& task, const Layout& layout);

}  // namespace ftrun

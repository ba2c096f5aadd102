#pragma once

#include <string>

namespace ftrun {

/// Returns the text of docs/models.md: which features of a config.json, and of a run, each family
/// has. Each feature is tried on a small model of the family, so the table shows what the code
/// does.
std::string support_markdown();

}  // namespace ftrun

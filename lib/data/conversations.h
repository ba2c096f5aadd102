#pragma once

#include <string>
#include <vector>

namespace ftrun {

/// Whether documents of a data set are conversations, which attention must not cross: the .json beside
/// a file says so, or that not every token is trained on; or there is a loss mask, or labels that do
/// not count in the first line of a JSONL file. Cheap. What cannot be read counts as none: opening it
/// says what is wrong.
bool holds_conversations(const std::vector<std::string>& paths);

}  // namespace ftrun

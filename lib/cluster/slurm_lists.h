#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Expands SLURM's compressed host list: "n[1-3,07],gpu-[01-02]x" gives n1 n2 n3 n07 gpu-01x
/// gpu-02x. Throws Error(kUsage) quoting the text if it is malformed or names over 65,536 hosts.
std::vector<std::string> expand_hostlist(std::string_view text);

/// Expands SLURM's tasks per node: "2(x3),1" gives 2 2 2 1. Throws Error(kUsage) if the text is
/// malformed.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace ftrun

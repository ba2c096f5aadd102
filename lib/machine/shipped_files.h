#pragma once

#include <span>
#include <string_view>

namespace ftrun {

/// ShippedFile is a file that comes with ftrun and is compiled into it: its name without ".yaml",
/// and its text.
struct ShippedFile {
  std::string_view name;
  std::string_view text;
};

/// Returns the files of configs/machines and of configs/stacks, ordered by name.
std::span<const ShippedFile> shipped_machines();
std::span<const ShippedFile> shipped_stacks();

}  // namespace ftrun

#pragma once

#include <optional>
#include <string>

#include "machine/machine.h"
#include "machine/software_stack.h"

namespace ftrun {

/// Reads a machine file (YAML, docs/plan.md), named `path` in messages. Throws Error(kUsage) with
/// every problem, its line and what to do: unknown keys, numbers without a unit or with a unit of
/// another quantity, missing keys.
Machine parse_machine(const std::string& path, const std::string& text);

/// Reads a machine file or, if there is no such file, the shipped machine of this name
/// ("h100-80gb", machine/shipped_files.h). Throws Error(kBadInput) where there is neither.
Machine read_machine_file(const std::string& path);

/// Reads a software stack's file (YAML, docs/plan.md), as parse_machine() does.
SoftwareStack parse_stack(const std::string& path, const std::string& text);

/// Reads the stack of a file or the shipped one of this name, as read_machine_file() does.
SoftwareStack read_stack_file(const std::string& path);

/// Returns the path of the file that `ftrun bench machine` writes: ftrun/machine.yaml in
/// XDG_CACHE_HOME, else in ~/.cache. "" if neither is known.
std::string own_machine_path();

/// Reads the machine file at `path`, which is own_machine_path(). Returns nothing if there is no
/// such file. Throws Error(kUsage, kBadInput) for a file that cannot be read.
std::optional<Machine> read_own_machine(const std::string& path);

/// Returns the text that parse_machine() reads back as this machine, to five digits.
std::string machine_yaml(const Machine& machine);

}  // namespace ftrun

#pragma once

#include <optional>
#include <string>

#include "machine/machine.h"
#include "machine/software_stack.h"

namespace ftrun {

/// Reads a machine file (YAML, docs/plan.md), named `path` in messages. Error(kUsage) with every
/// problem, its line and what to do: unknown keys, numbers without a unit or with one of another
/// kind, what is missing.
Machine parse_machine(const std::string& path, const std::string& text);

/// Reads a machine from a file. Error(kBadInput) where it cannot be read.
Machine read_machine_file(const std::string& path);

/// Reads a file of a software stack (YAML, docs/plan.md), as parse_machine() does.
SoftwareStack parse_stack(const std::string& path, const std::string& text);

/// Reads a stack from a file. Error(kBadInput) where it cannot be read.
SoftwareStack read_stack_file(const std::string& path);

/// The path where `ftrun bench machine` keeps what it measured: ftrun/machine.yaml in
/// XDG_CACHE_HOME, else in ~/.cache. "" if neither is known.
std::string own_machine_path();

/// The machine of that file; nothing where there is none. Error(kUsage, kBadInput) for one that
/// cannot be read.
std::optional<Machine> own_machine(const std::string& path);

/// Writes the text that parse_machine() reads back as this machine, up to its five digits.
std::string machine_text(const Machine& machine);

}  // namespace ftrun

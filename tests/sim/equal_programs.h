#pragma once

#include <string>

#include "program/program.h"

namespace ftrun::testing {

/// Returns the first difference between two programs beyond what a rank's position explains, or "".
/// Equal programs have the same buffers and instructions, with the same waits and with ranges of
/// equal length. The offset of a range may differ only in instructions that touch a rank's own part
/// of a whole.
std::string difference_but_place(const Program& a, const Program& b);

}  // namespace ftrun::testing

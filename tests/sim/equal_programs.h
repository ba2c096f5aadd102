#pragma once

#include <string>

#include "program/program.h"

namespace ftrun::fixtures {

/// Returns the first difference of two programs that is not the place of their ranks, or "": they
/// have the same buffers and instructions with the same waits, over ranges as long. Where a rank's
/// own part of a whole begins may differ, in instructions that touch only such parts.
std::string difference_but_place(const Program& a, const Program& b);

}  // namespace ftrun::fixtures

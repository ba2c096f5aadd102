#pragma once

#include <string>

#include "program/program.h"

namespace ftrun::fixtures {

/// The first thing in which two programs differ that is not the place of their ranks, or "": the
/// same buffers and instructions with the same waits, over ranges as long. Where a rank's own part
/// of a whole begins may differ, in instructions that touch such parts alone.
std::string difference_but_place(const Program& a, const Program& b);

}  // namespace ftrun::fixtures

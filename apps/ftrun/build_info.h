#pragma once

#include "report/manifest.h"

namespace ftrun {

/// What this binary was made of.
BuildInfo build_info();

}  // namespace ftrun

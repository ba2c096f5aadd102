#pragma once

#include "optimizers/optimizers.h"

namespace ftrun::optimizers {

// The entries of list.inc, by its enumerators.
#define FTRUN_OPTIMIZER(enumerator, name, rule) extern const Optimizer k##enumerator;
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) extern const Optimizer k##enumerator;
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
#undef FTRUN_REFUSED_OPTIMIZER

}  // namespace ftrun::optimizers

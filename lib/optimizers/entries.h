#pragma once

#include "optimizers/optimizers.h"

namespace ftrun::optimizers {

// Declares the entry of each line of list.inc: k##enumerator.
#define FTRUN_OPTIMIZER(enumerator, name, rule) extern const OptimizerTraits k##enumerator;
#define FTRUN_REFUSED_OPTIMIZER(enumerator, name) extern const OptimizerTraits k##enumerator;
#include "optimizers/list.inc"
#undef FTRUN_OPTIMIZER
#undef FTRUN_REFUSED_OPTIMIZER

}  // namespace ftrun::optimizers

#pragma once

#include "config/config.h"
#include "data/sample_set.h"

namespace ftrun {

/// Returns the options that say how a data set is cut into rows, from the config.
SampleSetOptions sample_options(const Config& config);

/// Returns the options of data.train, whose data sets may be mixed.
SampleSetOptions training_options(const Config& config);

}  // namespace ftrun

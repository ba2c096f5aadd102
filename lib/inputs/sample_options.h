#pragma once

#include "config/config.h"
#include "data/sample_set.h"

namespace ftrun {

/// Reads from the config how a data set is cut into rows.
SampleSetOptions sample_options(const Config& config);

/// Returns the options of data.train, whose data sets may be mixed.
SampleSetOptions training_options(const Config& config);

}  // namespace ftrun

#pragma once

#include "config/config.h"
#include "data/sample_set.h"

namespace ftrun {

/// Returns the options of the config by which a data set is cut into rows.
SampleSetOptions sample_options(const Config& config);

/// Returns the options of data.train, whose data sets may be mixed.
SampleSetOptions training_options(const Config& config);

}  // namespace ftrun

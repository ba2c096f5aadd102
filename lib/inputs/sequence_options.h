#pragma once

#include "config/config.h"
#include "data/sequence_set.h"

namespace ftrun {

/// Returns the options that say how a data set is cut into sequences, from the config.
SequenceSetOptions sequence_options(const Config& config);

/// Returns the options of data.train, whose data sets may be mixed.
SequenceSetOptions training_options(const Config& config);

}  // namespace ftrun

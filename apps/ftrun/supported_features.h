#pragma once

#include <string>

namespace ftrun {

/// Returns JSON that lists the config keys, the model families and the kinds of quantized models
/// that this build supports, and on which devices (`ftrun schema --support`; docs/errors.md).
std::string supported_features_json();

}  // namespace ftrun

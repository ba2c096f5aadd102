#pragma once

#include <string>

namespace ftrun {

/// Lists as JSON the keys of the config, the model families and the kinds of quantized models that
/// this build supports, and on which devices (`ftrun schema --support`; docs/errors.md).
std::string supported_features_json();

}  // namespace ftrun

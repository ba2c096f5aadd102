#pragma once

#include <string>

namespace ftrun {

/// Lists the keys of the config, model families and kinds of quantized models that this build runs,
/// and where, as JSON (`ftrun schema --support`; docs/errors.md).
std::string support_json();

}  // namespace ftrun

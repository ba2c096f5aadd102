#pragma once

#include <string>

#include "base/dtype.h"

namespace ftrun {

/// Returns the config.json for weights of `dtype`. It holds the dtype and the RoPE settings in the
/// forms of transformers 4 and 5, so that both read the same; everything else is unchanged.
/// `decoder_key` is that of ExportOptions (checkpoint/hf_export.h). `where` names the text in
/// errors.
std::string exported_config(const std::string& config_json, DType dtype,
                            const std::string& decoder_key, const std::string& where);

}  // namespace ftrun

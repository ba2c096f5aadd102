#pragma once

#include <string>
#include <vector>

#include "model/description.h"

namespace ftrun {

/// Lists the parts of a model that train, one line each: a module's name without its block's number
/// ("self_attn.q_proj"), what of it trains ("LoRA r 16", "LoRA r 8 to 16 with magnitudes",
/// "whole"), in how many blocks, in which not ("not 0 to 3, 7"), and the number of parameters; then
/// the modules of blocks that do not train at all. Returns nothing for a model that trains whole.
std::vector<std::string> trained_table(const ModelDescription& model);

}  // namespace ftrun

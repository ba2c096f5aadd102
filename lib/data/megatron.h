#pragma once

#include <memory>
#include <string>

#include "data/token_file.h"

namespace ftrun {

/// Opens `<prefix>.bin` and `<prefix>.idx` of Megatron's indexed data sets, version 1. The index is
/// checked once: its counts must fill the file exactly, its sequences must follow one another and
/// fill the .bin file, and its documents must cover the sequences. Throws Error(kBadInput) naming
/// file and offset.
std::unique_ptr<TokenFile> open_megatron(const std::string& prefix);

}  // namespace ftrun

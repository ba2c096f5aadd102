#pragma once

#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/error.h"
#include "data/sample_set.h"

namespace ftrun {

/// Says whether documents of a data set are conversations, which attention must not cross: the
/// .json beside a file says so, or that not every token is trained on; or there is a loss mask, or
/// the first document of a JSONL file has labels that do not count. `format` is data.format. Cheap.
/// A file that cannot be read does not count as one: opening it reports the error.
bool holds_conversations(const std::vector<std::string>& paths,
                         DataFormat format = DataFormat::kAuto);

/// Lists errors for conversations that are recorded to be longer than a row: rows would end in the
/// middle of them, or continue without their beginning. Empty for rows that ignore documents
/// (concat). Cheap.
std::vector<Error> too_long_conversations(const std::vector<std::string>& paths,
                                          const SampleSetOptions& options);

}  // namespace ftrun

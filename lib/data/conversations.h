#pragma once

#include <string>
#include <vector>

#include "base/data_format.h"
#include "base/error.h"
#include "data/sequence_set.h"

namespace ftrun {

/// Returns whether documents of a data set are conversations, whose ends attention must not cross.
/// They are if the .json next to a file says so, or says that not every token is trained on; if
/// there is a loss mask; or if the first document of a JSONL file has labels that do not count.
/// `format` is data.format. This is fast. A file that cannot be read does not count; opening it
/// reports the error.
bool holds_conversations(const std::vector<std::string>& paths,
                         DataFormat format = DataFormat::kAuto);

/// Lists errors for conversations that are recorded as longer than a sequence: sequences would end
/// in the middle of them, or continue without their beginning. The list is empty for a packing that
/// ignores documents (concat). This is fast.
std::vector<Error> check_conversation_lengths(const std::vector<std::string>& paths,
                                              const SequenceSetOptions& options);

}  // namespace ftrun

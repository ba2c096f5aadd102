#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// Reads one line of a JSONL data set into `ids` and `labels` (equally long; not shifted;
/// kIgnoredLabel where not trained), whose storage is reused: no allocation once they are large
/// enough. Keys: input_ids; labels, as long (absent: every token is trained); attention_mask, as
/// long (ones, with zeros only at the ends: such tokens are padding and dropped); position_ids
/// (only 0, 1, 2, ...). Other keys are skipped. Returns "" or what is wrong with the line.
std::string parse_jsonl_line(std::string_view line, std::vector<int32_t>& ids,
                             std::vector<int32_t>& labels);

}  // namespace ftrun

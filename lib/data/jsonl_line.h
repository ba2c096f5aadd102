#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// UnreadFields counts, by the field's name, the lines with a field that is neither read nor known
/// to be harmless.
using UnreadFields = std::map<std::string, int64_t, std::less<>>;

/// Reads one line of a JSONL data set into `ids` and `labels` (equally long; not shifted;
/// kIgnoredLabel where not trained). Their storage is reused: there is no allocation once they are
/// large enough. Keys: input_ids; labels, of the same length (absent: every token is trained);
/// attention_mask, of the same length (ones, with zeros only at the ends: such tokens are padding
/// and are dropped); position_ids (only 0, 1, 2, ...). A field that holds nothing (null, "", [],
/// {}) counts as absent. Other fields are refused if they could change what is trained on
/// (jsonl_fields.h); fields that are not known to be harmless are counted in `unread`. Returns the
/// problem with the line, or "".
std::string parse_jsonl_line(std::string_view line, std::vector<int32_t>& ids,
                             std::vector<int32_t>& labels, UnreadFields* unread = nullptr);

/// JsonlLine is a document's line in a JSONL file.
struct JsonlLine {
  std::string_view text;
  int64_t offset = 0;
  /// The line's number, from 1; blank lines count.
  int64_t number = 0;
};

/// JsonlLines iterates over the lines of a JSONL file that are not blank, without the byte order
/// mark of UTF-8 with which a file, or each part of a joined file, may begin.
class JsonlLines {
 public:
  explicit JsonlLines(std::string_view file);
  std::optional<JsonlLine> next();

 private:
  std::string_view file_;
  size_t at_ = 0;
  int64_t number_ = 0;
};

}  // namespace ftrun

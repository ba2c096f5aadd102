#include "data/jsonl_line.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/jsonl_fields.h"
#include "data/token_file.h"

namespace ftrun {
namespace {

constexpr int kMaxDepth = 64;

struct LineError {
  std::string what;
};

/// JsonValue is a value as it is written in the line; for a list, it also describes the entries.
struct JsonValue {
  std::string_view text;
  bool is_list = false;
  int64_t entries = 0;
  std::string_view first_entry;
  /// Says whether all entries of the list are written like the first one.
  bool entries_are_equal = true;

  bool holds_nothing() const {
    const bool empty =
        !text.empty() && text.substr(1).find_first_not_of(" \t\r\n") == text.size() - 2;
    return text == "null" || (is_list && entries == 0) ||
           (empty && (text.front() == '{' || text.front() == '"'));
  }
};

/// Calls `use` for each entry of a list of scalars.
template <typename Use>
void for_each_entry(std::string_view list, const Use& use) {
  list = list.substr(1, list.size() - 2);
  for (size_t index = 0; !list.empty(); ++index) {
    std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    entry.remove_prefix(std::min(entry.find_first_not_of(" \t\r\n"), entry.size()));
    use(index, entry.substr(0, entry.find_first_of(" \t\r\n")));
  }
}

std::string shorten(std::string_view value) {
  constexpr size_t kMaxShownBytes = 40;
  return value.size() <= kMaxShownBytes ? std::string(value)
                                        : cat(value.substr(0, kMaxShownBytes), "...");
}

bool is_true_text(std::string_view scalar) {
  return scalar == "1" || scalar == "1.0" || scalar == "true" || scalar == "\"true\"" ||
         scalar == "\"1\"";
}

bool is_false_text(std::string_view scalar) {
  return scalar == "0" || scalar == "0.0" || scalar == "-1" || scalar == "false" ||
         scalar == "\"false\"" || scalar == "\"0\"";
}

constexpr const char* kWriteLabels =
    "write labels, the ids with -100 for what does not count in the loss";

/// Returns the problem with a field that could change what is trained on; "" if its value has no
/// such effect.
std::string find_field_problem(JsonlField field, const JsonValue& value) {
  const bool all_ones =
      is_true_text(value.is_list && value.entries_are_equal ? value.first_entry : value.text);
  switch (field) {
    case JsonlField::kLengths:
    case JsonlField::kBoundaries: {
      const int64_t one = field == JsonlField::kBoundaries ? 2 : 1;
      const bool several =
          value.is_list && (value.entries > one || value.first_entry.starts_with("["));
      return several ? "describes several documents; packed lines are not read: write one document "
                       "a line"
                     : "";
    }
    case JsonlField::kSegments:
      return value.is_list && (!value.entries_are_equal || value.first_entry.starts_with("["))
                 ? "separates parts of the line; packed lines are not read: write one document a "
                   "line"
                 : "";
    case JsonlField::kWeights:
      return all_ones
                 ? ""
                 : cat("gives tokens weights, and ftrun gives all trained tokens the same weight: ",
                       kWriteLabels);
    case JsonlField::kOtherMask:
      return all_ones ? "" : cat("is not read: ", kWriteLabels);
    case JsonlField::kPreference:
      return "makes the line a preference, and ftrun has no preference training: write one line of "
             "input_ids for each answer to learn";
    case JsonlField::kDesirable:
      if (is_true_text(value.text)) return "";
      return is_false_text(value.text)
                 ? cat("is ", shorten(value.text),
                       ": what the line says must not be imitated; remove the line")
                 : cat("is ", shorten(value.text),
                       ", expected true (to be imitated) or false; remove the "
                       "field if it says something else");
    case JsonlField::kTrain:
      return is_true_text(value.text)
                 ? ""
                 : cat("is ", shorten(value.text),
                       ", expected true; remove a line that is not to be trained on");
    case JsonlField::kOtherTargets:
      return cat("is not read: ", kWriteLabels);
    case JsonlField::kMedia: {
      const bool number = value.text.find_first_not_of("0123456789.-+eE") == value.text.npos;
      return number ? ""
                    : "holds images, audio or video, and ftrun trains only on tokens: remove the "
                      "field if the text makes sense without it";
    }
    case JsonlField::kInputIds:
    case JsonlField::kLabels:
    case JsonlField::kAttentionMask:
    case JsonlField::kPositionIds:
    case JsonlField::kLossMask:
    case JsonlField::kMetadata:
    case JsonlField::kUnknown:
      break;
  }
  return "";
}

/// LineReader reads exactly the JSON that a data set needs: it keeps arrays of integers of known
/// keys and checks everything else, without building a document in memory.
class LineReader {
 public:
  LineReader(std::string_view line, std::vector<int32_t>& ids, std::vector<int32_t>& labels,
             UnreadFields* unread)
      : line_(line), ids_(ids), labels_(labels), unread_(unread) {}

  void read() {
    ids_.clear();
    labels_.clear();
    expect('{', "an object with input_ids");
    if (!accept('}')) {
      do read_member();
      while (accept(','));
      expect('}', "',' or '}'");
    }
    skip_space();
    if (at_ < line_.size()) fail("text after the object");
    finish();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw LineError{cat("column ", at_ + 1, ": ", what)};
  }
  /// Reports a problem of the number that was just read.
  [[noreturn]] void fail_number(const std::string& what) {
    at_ = number_at_;
    fail(what);
  }
  void skip_space() {
    while (at_ < line_.size() &&
           (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r' || line_[at_] == '\n'))
      ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) fail(cat("expected ", what));
  }

  void read_member() {
    skip_space();
    const std::string_view key = read_string();
    expect(':', "':' after the key");
    const JsonlField field = classify_jsonl_key(key);
    skip_space();
    if (line_.substr(at_).starts_with("null"))
      skip_value(0);
    else if (field == JsonlField::kInputIds)
      read_ids();
    else if (field == JsonlField::kLabels)
      read_labels();
    else if (field == JsonlField::kAttentionMask)
      read_attention();
    else if (field == JsonlField::kPositionIds)
      read_positions();
    else
      process_plain_field(key, field, read_value());
  }

  /// Stores, counts or refuses a field that is not an array of tokens.
  void process_plain_field(std::string_view key, JsonlField field, const JsonValue& value) {
    if (value.holds_nothing() || field == JsonlField::kMetadata) return;
    if (field == JsonlField::kLossMask) {
      loss_masks_.emplace_back(key, value);
    } else if (std::string problem = find_field_problem(field, value); !problem.empty()) {
      if (refused_.empty()) refused_ = cat("\"", key, "\" ", problem);
    } else if (field == JsonlField::kUnknown && unread_ != nullptr) {
      unknown_.push_back(key);
    }
  }

  JsonValue read_value() {
    const size_t begin = at_;
    JsonValue value;
    if (at_ < line_.size() && line_[at_] == '[') {
      value.is_list = true;
      read_entries(value);
    } else {
      skip_value(0);
    }
    value.text = line_.substr(begin, at_ - begin);
    return value;
  }

  void read_entries(JsonValue& value) {
    ++at_;
    if (accept(']')) return;
    do {
      skip_space();
      const size_t begin = at_;
      skip_value(1);
      const std::string_view entry = line_.substr(begin, at_ - begin);
      if (value.entries++ == 0) value.first_entry = entry;
      value.entries_are_equal = value.entries_are_equal && entry == value.first_entry;
    } while (accept(','));
    expect(']', "',' or ']'");
  }

  /// Reads the text between the quotes, escapes unchanged.
  std::string_view read_string() {
    if (at_ >= line_.size() || line_[at_] != '"') fail("expected a string");
    const size_t begin = ++at_;
    for (; at_ < line_.size() && line_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(line_[at_]) < 0x20) fail("a control character in a string");
      if (line_[at_] == '\\') ++at_;
    }
    if (at_ >= line_.size()) fail("the string does not end");
    return line_.substr(begin, at_++ - begin);
  }

  int64_t read_integer() {
    skip_space();
    number_at_ = at_;
    int64_t value = 0;
    const char* begin = line_.data() + at_;
    const auto result = std::from_chars(begin, line_.data() + line_.size(), value);
    if (result.ec == std::errc::result_out_of_range) fail("a number that no token id can be");
    if (result.ec != std::errc()) fail("expected an integer");
    at_ += static_cast<size_t>(result.ptr - begin);
    if (at_ < line_.size() && (line_[at_] == '.' || line_[at_] == 'e' || line_[at_] == 'E'))
      fail("expected an integer, found a fraction");
    return value;
  }

  template <typename Use>
  int64_t read_integers(const Use& use) {
    expect('[', "an array of integers");
    int64_t count = 0;
    if (accept(']')) return count;
    do use(read_integer(), count++);
    while (accept(','));
    expect(']', "',' or ']'");
    return count;
  }

  void begin_list(int64_t& length, const char* key) const {
    if (length >= 0) fail(cat("\"", key, "\" appears twice"));
    length = 0;
  }

  void read_ids() {
    begin_list(id_count_, "input_ids");
    id_count_ = read_integers([&](int64_t value, int64_t) {
      if (value < 0 || value > std::numeric_limits<int32_t>::max())
        fail_number(cat("id ", value, " in input_ids is not a token id"));
      ids_.push_back(static_cast<int32_t>(value));
    });
  }
  void read_labels() {
    begin_list(label_count_, "labels");
    label_count_ = read_integers([&](int64_t value, int64_t) {
      if ((value < 0 && value != kIgnoredLabel) || value > std::numeric_limits<int32_t>::max())
        fail_number(cat("label ", value, " is neither a token id nor -100"));
      labels_.push_back(static_cast<int32_t>(value));
    });
  }
  /// Keeps the positions of the first and the last attended token; all between them must be
  /// attended.
  void read_attention() {
    begin_list(mask_count_, "attention_mask");
    attended_first_ = attended_end_ = 0;
    mask_count_ = read_integers([&](int64_t value, int64_t i) {
      if (value != 0 && value != 1)
        fail_number(cat("attention_mask holds ", value, ", expected 0 or 1"));
      if (value == 0) return;
      if (attended_end_ == 0)
        attended_first_ = i;
      else if (attended_end_ != i)
        fail_number("attention_mask has a hole; zeros are read only as padding at the ends");
      attended_end_ = i + 1;
    });
  }
  void read_positions() {
    begin_list(position_count_, "position_ids");
    position_count_ = read_integers([&](int64_t value, int64_t i) {
      if (value != i)
        fail_number(cat("position_ids holds ", value, " at index ", i,
                        "; packed lines are not read: write one document a line"));
    });
  }

  void skip_value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    skip_space();
    if (at_ >= line_.size()) fail("the line ends inside a value");
    const char c = line_[at_];
    if (c == '"')
      read_string();
    else if (c == '{' || c == '[')
      skip_nested(depth, c == '{');
    else
      skip_scalar();
  }
  void skip_nested(int depth, bool object) {
    const char end = object ? '}' : ']';
    ++at_;
    if (accept(end)) return;
    do {
      if (object) {
        skip_space();
        read_string();
        expect(':', "':' after the key");
      }
      skip_value(depth + 1);
    } while (accept(','));
    expect(end, object ? "',' or '}'" : "',' or ']'");
  }
  void skip_scalar() {
    const size_t begin = at_;
    while (at_ < line_.size() &&
           std::string_view(",]} \t\r").find(line_[at_]) == std::string_view::npos)
      ++at_;
    const std::string_view word = line_.substr(begin, at_ - begin);
    if (word == "true" || word == "false" || word == "null") return;
    double number = 0;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool numeric = result.ec != std::errc::invalid_argument &&
                         result.ptr == word.data() + word.size() &&
                         word.find_first_not_of("+-.eE0123456789") == std::string_view::npos;
    if (numeric && !word.empty()) return;
    at_ = begin;
    fail("expected a value");
  }

  void check_same_length(int64_t length, const char* key) const {
    if (length >= 0 && length != id_count_)
      throw LineError{cat("input_ids has ", id_count_, " entries, ", key, " has ", length)};
  }

  void finish() {
    if (id_count_ < 0) throw LineError{"has no \"input_ids\""};
    if (!refused_.empty()) throw LineError{refused_};
    if (id_count_ > 0)
      for (int64_t* count : {&label_count_, &mask_count_, &position_count_})
        if (*count == 0) *count = -1;  // an empty list counts as absent
    check_loss_masks();
    for (const std::string_view key : unknown_) count_unread(key);
    check_same_length(label_count_, "labels");
    check_same_length(mask_count_, "attention_mask");
    check_same_length(position_count_, "position_ids");
    if (label_count_ < 0) labels_.assign(ids_.begin(), ids_.end());
    if (mask_count_ < 0) return;
    for (std::vector<int32_t>* list : {&ids_, &labels_}) {
      list->erase(list->begin() + attended_end_, list->end());
      list->erase(list->begin(), list->begin() + attended_first_);
    }
  }

  /// Refuses a loss mask unless the labels also exclude every token that the mask excludes.
  void check_loss_masks() const {
    for (const auto& [key, mask] : loss_masks_) {
      const std::string name = cat("\"", key, "\"");
      if (!mask.is_list) throw LineError{cat(name, " is not read: ", kWriteLabels)};
      if (mask.entries != id_count_)
        throw LineError{cat("input_ids has ", id_count_, " entries, ", key, " has ", mask.entries)};
      if (mask.entries_are_equal && is_true_text(mask.first_entry)) continue;
      if (label_count_ != id_count_) throw LineError{cat(name, " is not read: ", kWriteLabels)};
      for_each_entry(mask.text, [&](size_t i, std::string_view entry) {
        if (!is_true_text(entry) && !is_false_text(entry))
          throw LineError{
              cat(name, " holds ", shorten(entry), " at index ", i, ", expected 0 or 1")};
        if (is_false_text(entry) && labels_[i] != kIgnoredLabel)
          throw LineError{cat(name, " holds ", shorten(entry), " at index ", i,
                              ", where labels trains on ", labels_[i],
                              ": only labels are read; write -100 there, or remove the mask")};
      });
    }
  }

  void count_unread(std::string_view key) {
    const auto found = unread_->find(key);
    if (found == unread_->end())
      unread_->emplace(key, 1);
    else
      ++found->second;
  }

  std::string_view line_;
  std::vector<int32_t>& ids_;
  std::vector<int32_t>& labels_;
  UnreadFields* unread_;
  std::vector<std::pair<std::string_view, JsonValue>> loss_masks_;
  std::vector<std::string_view> unknown_;
  std::string refused_;
  size_t at_ = 0;
  size_t number_at_ = 0;
  int64_t id_count_ = -1, label_count_ = -1, mask_count_ = -1, position_count_ = -1;
  int64_t attended_first_ = 0, attended_end_ = 0;
};

}  // namespace

std::string parse_jsonl_line(std::string_view line, std::vector<int32_t>& ids,
                             std::vector<int32_t>& labels, UnreadFields* unread) {
  try {
    LineReader(line, ids, labels, unread).read();
  } catch (const LineError& error) {
    return error.what;
  }
  return "";
}

JsonlLines::JsonlLines(std::string_view file) : file_(file) {}

std::optional<JsonlLine> JsonlLines::next() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  while (at_ < file_.size()) {
    if (file_.substr(at_).starts_with(kByteOrderMark)) at_ += kByteOrderMark.size();
    const size_t begin = at_;
    const std::string_view rest = file_.substr(begin);
    const std::string_view line = rest.substr(0, rest.find('\n'));
    at_ += line.size() + 1;
    ++number_;
    if (line.find_first_not_of(" \t\r") != line.npos)
      return JsonlLine{line, static_cast<int64_t>(begin), number_};
  }
  return std::nullopt;
}

}  // namespace ftrun

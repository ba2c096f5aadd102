#include "data/jsonl_line.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/token_file.h"

namespace ftrun {
namespace {

constexpr int kDeepest = 64;

struct LineError {
  std::string what;
};

/// A reader of exactly the JSON a data set needs: it keeps arrays of integers of known keys and
/// checks and skips everything else, without building a document in memory.
class LineReader {
 public:
  LineReader(std::string_view line, std::vector<int32_t>& ids, std::vector<int32_t>& labels)
      : line_(line), ids_(ids), labels_(labels) {}

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
  /// For a number just read that may not stand here.
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
    const std::string_view key = string();
    expect(':', "':' after the key");
    if (key == "input_ids")
      read_ids();
    else if (key == "labels")
      read_labels();
    else if (key == "attention_mask")
      read_attention();
    else if (key == "position_ids")
      read_positions();
    else {
      if (is_mask(key)) mask_elsewhere_ = key;
      skip_value(0);
    }
  }

  /// What other programs say by it, which tokens count in the loss, is said by labels here.
  static bool is_mask(std::string_view key) {
    return key == "completion_mask" || key == "assistant_masks" || key == "assistant_mask" || key == "loss_mask" || key == "prompt_mask";
  }

  /// The text between the quotes, escapes left as they are.
  std::string_view string() {
    if (at_ >= line_.size() || line_[at_] != '"') fail("expected a string");
    const size_t begin = ++at_;
    for (; at_ < line_.size() && line_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(line_[at_]) < 0x20) fail("a control character in a string");
      if (line_[at_] == '\\') ++at_;
    }
    if (at_ >= line_.size()) fail("the string does not end");
    return line_.substr(begin, at_++ - begin);
  }

  int64_t integer() {
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
  int64_t integers(const Use& use) {
    expect('[', "an array of integers");
    int64_t count = 0;
    if (accept(']')) return count;
    do use(integer(), count++);
    while (accept(','));
    expect(']', "',' or ']'");
    return count;
  }

  void once(int64_t& length, const char* key) const {
    if (length >= 0) fail(cat("\"", key, "\" appears twice"));
    length = 0;
  }

  void read_ids() {
    once(id_count_, "input_ids");
    id_count_ = integers([&](int64_t value, int64_t) {
      if (value < 0 || value > std::numeric_limits<int32_t>::max())
        fail_number(cat("id ", value, " in input_ids is not a token id"));
      ids_.push_back(static_cast<int32_t>(value));
    });
  }
  void read_labels() {
    once(label_count_, "labels");
    label_count_ = integers([&](int64_t value, int64_t) {
      if ((value < 0 && value != kIgnoredLabel) || value > std::numeric_limits<int32_t>::max())
        fail_number(cat("label ", value, " is neither a token id nor -100"));
      labels_.push_back(static_cast<int32_t>(value));
    });
  }
  /// Keeps the first and last attended position; everything between must be attended.
  void read_attention() {
    once(mask_count_, "attention_mask");
    attended_first_ = attended_end_ = 0;
    mask_count_ = integers([&](int64_t value, int64_t i) {
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
    once(position_count_, "position_ids");
    position_count_ = integers([&](int64_t value, int64_t i) {
      if (value != i)
        fail_number(cat("position_ids holds ", value, " at index ", i,
                        "; packed lines are not read: write one document a line"));
    });
  }

  void skip_value(int depth) {
    if (depth > kDeepest) fail("nested too deeply");
    skip_space();
    if (at_ >= line_.size()) fail("the line ends inside a value");
    const char c = line_[at_];
    if (c == '"')
      string();
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
        string();
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

  void same_length(int64_t length, const char* key) const {
    if (length >= 0 && length != id_count_)
      throw LineError{cat("input_ids has ", id_count_, " entries, ", key, " has ", length)};
  }

  void finish() {
    if (id_count_ < 0) throw LineError{"has no \"input_ids\""};
    if (label_count_ < 0 && !mask_elsewhere_.empty())
      throw LineError{cat("\"", mask_elsewhere_, "\" is not read: write labels, the ids with -100 for what does not count in the loss")};
    same_length(label_count_, "labels");
    same_length(mask_count_, "attention_mask");
    same_length(position_count_, "position_ids");
    if (label_count_ < 0) labels_.assign(ids_.begin(), ids_.end());
    if (mask_count_ < 0) return;
    for (std::vector<int32_t>* list : {&ids_, &labels_}) {
      list->erase(list->begin() + attended_end_, list->end());
      list->erase(list->begin(), list->begin() + attended_first_);
    }
  }

  std::string_view line_;
  std::vector<int32_t>& ids_;
  std::vector<int32_t>& labels_;
  std::string_view mask_elsewhere_;
  size_t at_ = 0;
  size_t number_at_ = 0;
  int64_t id_count_ = -1, label_count_ = -1, mask_count_ = -1, position_count_ = -1;
  int64_t attended_first_ = 0, attended_end_ = 0;
};

}  // namespace

std::string parse_jsonl_line(std::string_view line, std::vector<int32_t>& ids,
                             std::vector<int32_t>& labels) {
  try {
    LineReader(line, ids, labels).read();
  } catch (const LineError& error) {
    return error.what;
  }
  return "";
}

JsonlLines::JsonlLines(std::string_view file) : file_(file) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (file.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
}

std::optional<JsonlLine> JsonlLines::next() {
  while (at_ < file_.size()) {
    const size_t begin = at_;
    const std::string_view rest = file_.substr(begin);
    const std::string_view line = rest.substr(0, rest.find('\n'));
    at_ += line.size() + 1;
    ++number_;
    if (line.find_first_not_of(" \t\r") != line.npos) return JsonlLine{line, static_cast<int64_t>(begin), number_};
  }
  return std::nullopt;
}

}  // namespace ftrun

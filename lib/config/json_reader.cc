#include "config/json_reader.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/secret.h"
#include "base/text.h"
#include "config/limits.h"

// This reader exists because a config needs the position of every key and value, and all faults of
// a file at once; nlohmann/json's parser gives neither. Tests compare the two parsers on every file
// of the corpus.

namespace ftrun {
namespace {

constexpr size_t kMaxShown = 8;

struct UnreadableJson {};  // thrown after a fault that makes the rest unreadable

class JsonReader {
 public:
  JsonReader(const std::string& file, std::string_view text, Problems& problems)
      : text_(text), problems_(problems), here_{file, 1, 1} {}

  ConfigNode read() {
    ConfigNode root;
    try {
      if (text_.starts_with("\xEF\xBB\xBF")) next_ += 3;
      skip_blank();
      root = read_value(0);
      skip_blank();
      if (!at_end()) stop(cat("found ", describe_next(), " after the end of the config"));
    } catch (const UnreadableJson&) {
    }
    report_placeholders();
    return root;
  }

 private:
  bool at_end() const { return next_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[next_]; }
  const Position& here() const { return here_; }

  void advance() { advance_position(text_[next_++], here_); }

  std::string describe_next() const {
    if (at_end()) return "the end of the file";
    const auto c = static_cast<unsigned char>(text_[next_]);
    if (c < 0x20 || c >= 0x7f) return cat("the byte ", static_cast<int>(c));
    return cat("'", text_[next_], "'");
  }

  [[noreturn]] void stop(const std::string& message, const std::string& remedy = "") {
    stop_at(here(), message, remedy);
  }
  [[noreturn]] void stop_at(const Position& at, const std::string& message,
                            const std::string& remedy = "") {
    problems_.error(at, message, remedy);
    throw UnreadableJson{};
  }

  void skip_blank() {
    for (;;) {
      while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\n'))
        advance();
      const std::string_view rest = text_.substr(next_);
      if (rest.starts_with("//") || rest.starts_with("#"))
        while (!at_end() && peek() != '\n') advance();
      else if (rest.starts_with("/*"))
        skip_block_comment();
      else
        return;
    }
  }

  void skip_block_comment() {
    const Position start = here();
    const size_t end = text_.find("*/", next_ + 2);
    if (end == std::string_view::npos) stop_at(start, "this comment is never closed with */");
    while (next_ < end + 2) advance();
  }

  ConfigNode read_value(int depth) {
    if (depth > kMaxSectionDepth) stop(cat("nested deeper than ", kMaxSectionDepth, " levels"));
    if (++values_ > kMaxValues)
      stop(cat("holds more than ", kMaxValues, " values: is this a config?"));
    switch (peek()) {
      case '{':
        return read_map(depth);
      case '[':
        return read_list(depth);
      case '"': {
        const Position at = here();
        return ConfigNode::of_text(at, read_text());
      }
      default:
        return read_word();
    }
  }

  ConfigNode read_map(int depth) {
    ConfigNode map = ConfigNode::of_map(here());
    advance();
    for (;;) {
      skip_blank();
      if (peek() == '}') break;
      if (at_end()) stop_at(map.at, "this '{' is never closed");
      const Position key_at = here();
      std::string key = read_key();
      skip_blank();
      if (peek() != ':')
        stop(cat("expected ':' after the key \"", key, "\", found ", describe_next()));
      advance();
      skip_blank();
      check_key(map, key, key_at);
      ConfigNode value = read_value_of(key, depth + 1);
      add(map, {std::move(key), key_at, std::move(value)});
      if (!read_separator('}', map.at)) break;
    }
    advance();
    return map;
  }

  void check_key(const ConfigNode& map, const std::string& key, const Position& at) {
    if (key.size() > kMaxKeyBytes)
      stop_at(at, cat("this key has ", key.size(), " bytes; the limit is ", kMaxKeyBytes,
                      ": is this a config?"));
    if (map.entries.size() == kMaxKeys)
      stop_at(at, cat("this section holds more than ", kMaxKeys, " keys: is this a config?"));
  }

  ConfigNode read_value_of(const std::string& key, int depth) {
    const bool outer = std::exchange(secret_, secret_ || is_secret_name(key));
    ConfigNode value = read_value(depth);
    secret_ = outer;
    return value;
  }

  void add(ConfigNode& map, ConfigEntry entry) {
    if (map.find(entry.key) == nullptr) {
      map.entries.push_back(std::move(entry));
      return;
    }
    for (const ConfigEntry& known : map.entries)
      if (known.key == entry.key)
        problems_.error(
            entry.at,
            cat("the key \"", entry.key, "\" is written twice (first at line ", known.at.line, ")"),
            "keep one of the two");
  }

  ConfigNode read_list(int depth) {
    ConfigNode list{.kind = ConfigNodeKind::kList, .at = here()};
    advance();
    for (;;) {
      skip_blank();
      if (peek() == ']') break;
      if (at_end()) stop_at(list.at, "this '[' is never closed");
      list.items.push_back(read_value(depth + 1));
      if (!read_separator(']', list.at)) break;
    }
    advance();
    return list;
  }

  // Reads what follows a value; returns true after a comma, false in front of the closing bracket.
  bool read_separator(char close, const Position& opened) {
    skip_blank();
    if (peek() == ',') {
      advance();
      return true;
    }
    if (peek() == close) return false;
    if (at_end()) stop_at(opened, cat("this '", close == '}' ? '{' : '[', "' is never closed"));
    stop(cat("expected ',' or '", close, "', found ", describe_next()),
         "is a comma missing before it?");
  }

  std::string read_key() {
    if (peek() == '"') return read_text();
    if (peek() == '\'') stop("found a key in single quotes", "write it in double quotes");
    stop(cat("expected a key in double quotes, found ", describe_next()),
         "write keys as \"key\": value");
  }

  std::string read_text() {
    const Position start = here();
    std::string out;
    advance();
    while (peek() != '"') {
      if (at_end() || peek() == '\n') stop_at(start, "this text is never closed with '\"'");
      if (peek() == '\\')
        read_escape(out);
      else
        out += peek(), advance();
    }
    advance();
    return out;
  }

  void read_escape(std::string& out) {
    const Position at = here();
    advance();
    const char c = peek();
    static constexpr std::string_view kLetters = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const size_t i = kLetters.find(c); c != '\0' && i != std::string_view::npos) {
      out += kMeanings[i];
      advance();
    } else if (c == 'u') {
      append_utf8(out, read_code_point(at));
    } else {
      stop_at(at, cat("\\", c == '\0' ? ' ' : c, " is not an escape of JSON"),
              "write \\\\ for a backslash");
    }
  }

  uint32_t read_code_point(const Position& at) {
    const uint32_t first = read_hex4(at);
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first <= 0xDBFF && text_.substr(next_).starts_with("\\u")) {
      advance();
      const uint32_t second = read_hex4(at);
      if (second >= 0xDC00 && second <= 0xDFFF)
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    stop_at(at, "this \\u escape is half of a surrogate pair");
  }

  uint32_t read_hex4(const Position& at) {
    advance();  // the u
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0)
        stop_at(at, "\\u expects four hexadecimal digits");
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      value = value * 16 + static_cast<uint32_t>(digit);
      advance();
    }
    return value;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    if (code < 0x80) {
      out += static_cast<char>(code);
      return;
    }
    const int continuation_bytes = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
    out += static_cast<char>(kLead[continuation_bytes] | (code >> (6 * continuation_bytes)));
    for (int i = continuation_bytes - 1; i >= 0; --i)
      out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }

  // Reads a number, a word of JSON (true, null, ...), or text that is neither.
  ConfigNode read_word() {
    const Position at = here();
    const std::string word = scan_word();
    if (word.empty()) stop_at(at, cat("expected a value, found ", describe_next()));
    if (word == "null" || word == "true" || word == "false" || word == "NaN" ||
        word == "Infinity" || word == "-Infinity")
      return read_scalar(at, word);
    const bool number = std::isdigit(static_cast<unsigned char>(word[0])) != 0 ||
                        (word.size() > 1 && word[0] == '-');
    if (number) {
      const ConfigNode node = read_scalar(at, word);
      if (node.kind == ConfigNodeKind::kInt || node.kind == ConfigNodeKind::kFloat) return node;
    }
    return refuse_word(at, word);
  }

  std::string scan_word() {
    std::string word;
    int braces = 0;  // of ${name}
    while (!at_end()) {
      const char c = peek();
      if (c == '{' && !word.empty() && (word.back() == '$' || word.back() == '{'))
        ++braces;
      else if (c == '}' && braces > 0)
        --braces;
      else if (std::isspace(static_cast<unsigned char>(c)) != 0 ||
               std::string_view(",:]}{[\"").find(c) != std::string_view::npos)
        break;
      word += c;
      advance();
    }
    return word;
  }

  ConfigNode refuse_word(const Position& at, const std::string& word) {
    if (secret_) stop_at(at, "this is not a JSON value", "write texts in double quotes");
    if (word == "True" || word == "False" || word == "None") {
      problems_.error(at, cat(word, " is Python, not JSON"),
                      cat("write ", word == "True"    ? "true"
                                    : word == "False" ? "false"
                                                      : "null"));
      return read_scalar(at, word == "None" ? "null" : word);
    }
    const bool name =
        std::isalpha(static_cast<unsigned char>(word[0])) != 0 || word[0] == '_' || word[0] == '$';
    if (!name) stop_at(at, cat("\"", word, "\" is not a value of JSON"));
    if (word[0] != '$' && std::islower(static_cast<unsigned char>(word[0])) != 0)
      problems_.error(at, cat("the text ", word, " has no quotes"), cat("write \"", word, "\""));
    else
      placeholders_.emplace_back(word, at);
    // Continues as if the key were "auto", so that one fault does not cause a second.
    return ConfigNode::of_text(at, "auto");
  }

  // Reports one problem for the whole file, because a template that was not filled in is one
  // mistake.
  void report_placeholders() {
    if (placeholders_.empty()) return;
    std::vector<std::string> others;
    for (const auto& [word, at] : placeholders_)
      if (word != placeholders_.front().first && others.size() < kMaxShown &&
          std::find(others.begin(), others.end(), word) == others.end())
        others.push_back(word);
    problems_.error(placeholders_.front().second,
                    cat(placeholders_.front().first, " is a template placeholder, not a value",
                        others.empty() ? "" : cat(" (so are ", join(others, ", "), ")")),
                    "fill in the template first; the script that comes with it usually does");
  }

  std::string_view text_;
  Problems& problems_;
  size_t next_ = 0;
  Position here_;
  int values_ = 0;
  bool secret_ = false;  // inside the value of a key whose values are not shown
  std::vector<std::pair<std::string, Position>> placeholders_;
};

}  // namespace

ConfigNode read_json(const std::string& file, std::string_view text, Problems& problems) {
  return JsonReader(file, text, problems).read();
}

}  // namespace ftrun

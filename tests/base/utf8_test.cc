#include "base/utf8.h"

#include <string>

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("bytes that are not UTF-8 are escaped, the rest stays") {
  CHECK(escape_not_utf8("日本 caf\xe9!") == "日本 caf\\xE9!");
  CHECK(escape_not_utf8("\xff\xfe") == "\\xFF\\xFE");
  CHECK(escape_not_utf8("") == "");
}

TEST_CASE("the text of a message cannot steer the terminal that shows it") {
  CHECK(terminal_text("runs/日本 [v2]:\n\tgood") == "runs/日本 [v2]:\n\tgood");
  CHECK(terminal_text("\x1b[2Jgone\r\x07\x7f") == "\\x1B[2Jgone\\x0D\\x07\\x7F");
  CHECK(terminal_text("caf\xe9") == "caf\\xE9");
  CHECK(terminal_text("\xc2\x9b"
                      "2J") == "\\xC2\\x9B2J");  // CSI as one character
  CHECK(terminal_text("a\xe2\x80\xae"
                      "b") == "a\\xE2\\x80\\xAEb");  // right-to-left override
}

}  // namespace
}  // namespace ftrun

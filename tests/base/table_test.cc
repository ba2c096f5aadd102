#include "base/table.h"

#include "base/error.h"
#include "thrown_error.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("a table aligns words to the left and numbers to the right") {
  REQUIRE(format_table(
              {"memory", "bytes", "share"},
              {{"parameters", "538.06 MiB", "25%"}, {"größe", "-", "nan"}, {"sum", "1.2 GiB"}}) ==
          "memory           bytes  share\n"
          "----------  ----------  -----\n"
          "parameters  538.06 MiB    25%\n"
          "größe                -    nan\n"
          "sum            1.2 GiB\n");
}

TEST_CASE("a table without rows has its headers, and a row that is too wide is a bug") {
  REQUIRE(format_table({"a", "bc"}, {}) == "a  bc\n-  --\n");
  REQUIRE(format_table({}, {}) == "\n\n");
  REQUIRE(testing::error_line_of([] {
            format_table({"a"}, {{"1", "2"}});
          }).starts_with(cat(static_cast<int>(ExitCode::kBug), ": ")));
}

}  // namespace
}  // namespace ftrun

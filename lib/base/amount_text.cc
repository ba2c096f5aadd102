#include "base/amount_text.h"

#include "base/error.h"
#include "base/text.h"

namespace ftrun {

std::string count_text(int64_t count, std::string_view noun) {
  return cat(count, " ", noun, count == 1 ? "" : "s");
}

std::string seconds_text(double seconds) {
  return format_number("%.4g", seconds) + " s";
}

std::string signed_percent_text(double share, int digits) {
  return cat(share < 0 ? "" : "+", percent_text(share, digits));
}

}  // namespace ftrun

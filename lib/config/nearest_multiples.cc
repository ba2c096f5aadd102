#include "config/nearest_multiples.h"

#include "base/error.h"

namespace ftrun {

std::string nearest_multiples_text(std::string_view advice, int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  if (below == 0) return cat(advice, " ", unit, " or a multiple of it");
  return cat(advice, " ", below, " or ", below + unit);
}

}  // namespace ftrun

#include "cluster/core_share.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// The maximum number of cores that a text may list; longer lists are invalid.
constexpr size_t kMaxNumbers = 1 << 16;

/// Formats core numbers, which must be ascending, as ranges: "0-3,8".
std::string ranges_text(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    ranges.push_back(last == i ? cat(numbers[i]) : cat(numbers[i], "-", numbers[last]));
    i = last + 1;
  }
  return join(ranges, ",");
}

std::vector<int> parse_ranges(const std::string& text) {
  std::vector<int> numbers;
  for (const std::string& range : split(text, ',')) {
    const char* const end = range.data() + range.size();
    int first = 0;
    const auto [dash, error] = std::from_chars(range.data(), end, first);
    int last = first;
    if (error != std::errc()) continue;
    if (dash != end && (*dash != '-' || std::from_chars(dash + 1, end, last).ec != std::errc()))
      continue;
    for (int number = first; number <= last && numbers.size() < kMaxNumbers; ++number)
      numbers.push_back(number);
  }
  return numbers;
}

/// Returns whether two ascending lists have a core in common.
bool share_a_core(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](int number) { return std::binary_search(b.begin(), b.end(), number); });
}

}  // namespace

std::string core_limit_text(const CoreLimit& limit) {
  return cat(ranges_text(limit.allowed_cores), "\n", number_text(limit.quota_cores), "\n",
             limit.quota_group_id, "\n", limit.quota_group);
}

CoreLimit parse_core_limit(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  lines.resize(4);
  CoreLimit limit{.allowed_cores = parse_ranges(lines[0]),
                  .quota_cores = std::atof(lines[1].c_str()),
                  .quota_group = lines[3],
                  .quota_group_id = lines[2]};
  if (limit.allowed_cores.empty()) limit.allowed_cores = {0};
  if (!(limit.quota_cores > 0)) limit.quota_cores = 0;
  return limit;
}

int threads_of_rank(const std::vector<RankCores>& ranks, int rank) {
  const RankCores& own = ranks.at(static_cast<size_t>(rank));
  int sharing_ranks = 0, ranks_in_group = 0;
  for (const RankCores& other : ranks) {
    if (other.machine != own.machine) continue;
    sharing_ranks += share_a_core(other.limit.allowed_cores, own.limit.allowed_cores) ? 1 : 0;
    ranks_in_group +=
        other.limit.quota_cores > 0 && other.limit.quota_group_id == own.limit.quota_group_id ? 1
                                                                                              : 0;
  }
  const int cores = static_cast<int>(own.limit.allowed_cores.size()) / std::max(1, sharing_ranks);
  if (own.limit.quota_cores == 0) return std::max(1, cores);
  return std::max(
      1, std::min(cores, threads_of_quota(own.limit.quota_cores) / std::max(1, ranks_in_group)));
}

std::string quota_text(const CoreLimit& limit) {
  if (limit.quota_cores == 0 ||
      threads_of_quota(limit.quota_cores) >= static_cast<int>(limit.allowed_cores.size()))
    return "";
  return cat("the control group ", limit.quota_group, " grants the time of ",
             number_text(limit.quota_cores), limit.quota_cores == 1 ? " core" : " cores");
}

}  // namespace ftrun

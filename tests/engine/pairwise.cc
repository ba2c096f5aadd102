#include "pairwise.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace ftrun::testing {
namespace {

/// Assigns a number to each pair of values of two axes.
class PairNumbers {
 public:
  explicit PairNumbers(const std::vector<int>& sizes) : sizes_(sizes) {
    for (size_t a = 0; a < sizes.size(); ++a)
      for (size_t b = a + 1; b < sizes.size(); ++b) {
        begins_.push_back(count_);
        count_ += sizes[a] * sizes[b];
      }
  }
  size_t count() const { return static_cast<size_t>(count_); }
  void write(std::span<const char> row, std::vector<int>& pairs) const {
    pairs.clear();
    size_t at = 0;
    for (size_t a = 0; a < sizes_.size(); ++a)
      for (size_t b = a + 1; b < sizes_.size(); ++b)
        pairs.push_back(begins_[at++] + row[a] * sizes_[b] + row[b]);
  }

 private:
  const std::vector<int>& sizes_;
  std::vector<int> begins_;
  int count_ = 0;
};

/// Advances `row` to the next combination, like an odometer; returns false after the last.
bool advance(AxisValues& row, const std::vector<int>& sizes) {
  for (size_t axis = row.size(); axis-- > 0;) {
    if (++row[axis] < sizes[axis]) return true;
    row[axis] = 0;
  }
  return false;
}

}  // namespace

std::vector<size_t> cover_pairs(size_t candidates, size_t pairs,
                                const std::function<std::span<const int>(size_t)>& pairs_of) {
  std::vector<char> covered(pairs, 0);
  const auto gain = [&](size_t i) {
    const std::span<const int> own = pairs_of(i);
    return std::count_if(own.begin(), own.end(),
                         [&](int pair) { return covered[static_cast<size_t>(pair)] == 0; });
  };
  std::mt19937_64 random(13);
  std::vector<size_t> chosen;
  const auto take = [&](size_t i) {
    chosen.push_back(i);
    for (const int pair : pairs_of(i)) covered[static_cast<size_t>(pair)] = 1;
  };
  // Greedy choice: take the best of 300 random candidates until none of them covers a new pair,
  // then every candidate that still does.
  constexpr int kTries = 300;
  for (;;) {
    size_t best = random() % candidates;
    for (int i = 0; i < kTries; ++i)
      if (const size_t other = random() % candidates; gain(other) > gain(best)) best = other;
    if (gain(best) == 0) break;
    take(best);
  }
  for (size_t i = 0; i < candidates; ++i)
    if (gain(i) > 0) take(i);
  return chosen;
}

std::vector<AxisValues> covering_rows(const std::vector<int>& sizes,
                                      const std::function<bool(const AxisValues&)>& is_possible) {
  std::vector<char> possible;  // all possible rows, one after the other
  AxisValues row(sizes.size(), 0);
  do {
    if (is_possible(row)) possible.insert(possible.end(), row.begin(), row.end());
  } while (advance(row, sizes));
  const auto row_at = [&](size_t i) {
    return std::span<const char>(possible).subspan(i * sizes.size(), sizes.size());
  };
  const PairNumbers numbers(sizes);
  std::vector<int> pairs;
  const std::vector<size_t> chosen =
      cover_pairs(possible.size() / sizes.size(), numbers.count(), [&](size_t i) {
        numbers.write(row_at(i), pairs);
        return std::span<const int>(pairs);
      });
  std::vector<AxisValues> rows;
  for (const size_t i : chosen) rows.emplace_back(row_at(i).begin(), row_at(i).end());
  return rows;
}

}  // namespace ftrun::testing

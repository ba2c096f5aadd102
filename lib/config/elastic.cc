#include "config/elastic.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "config/ranks.h"

namespace ftrun {
namespace {

// Numbers that have more divisors than any smaller number. Many different numbers of ranks can
// divide a batch that is a multiple of such a number.
constexpr int64_t kHighlyComposite[] = {
    1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
    180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
    10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
    166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

int64_t largest_composite_multiple(int64_t base, int64_t limit) {
  if (base == limit) return base;
  const auto above =
      std::upper_bound(std::begin(kHighlyComposite), std::end(kHighlyComposite), limit / base);
  return base * *std::prev(above);
}

/// Computes the least common multiple; 0 if it exceeds `limit`.
int64_t least_common_multiple(const std::vector<int64_t>& numbers, int64_t limit) {
  int64_t out = 1;
  for (const int64_t number : numbers) {
    const int64_t factor = number / std::gcd(out, number);
    if (__builtin_mul_overflow(out, factor, &out) || out > limit) return 0;
  }
  return out;
}

std::vector<int64_t> list_candidate_batches(const std::vector<int64_t>& micros, int64_t limit) {
  std::vector<int64_t> out;
  for (const int64_t micro : micros) out.push_back(largest_composite_multiple(micro, limit));
  if (const int64_t common = least_common_multiple(micros, limit); common != 0)
    out.push_back(largest_composite_multiple(common, limit));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// Lists the numbers of groups with which each group's share of the batch is a multiple of one of
/// the micro-batches.
std::vector<int64_t> fitting_group_counts(int64_t batch, const std::vector<int64_t>& micros,
                                          int64_t min_groups, int64_t max_groups) {
  std::vector<int64_t> out;
  for (int64_t groups = min_groups; groups <= max_groups && groups <= batch; ++groups)
    if (std::any_of(micros.begin(), micros.end(), [&](int64_t micro) {
          return batch % micro == 0 && batch / micro % groups == 0;
        }))
      out.push_back(groups);
  return out;
}

bool counts_machines(const ElasticityConfig& e) {
  return e.version > 0.15;
}

/// Computes the micro-batch for this number of data-parallel ranks; 0 if they cannot take equal
/// shares.
int64_t fit_micro_batch(const Config& config, int64_t data_ranks) {
  if (config.train_batch_size % data_ranks != 0) return 0;
  if (config.elasticity.enabled)
    return elastic_micro_batch(config.elasticity, config.train_batch_size, data_ranks);
  const int64_t share = config.train_batch_size / data_ranks;
  int64_t micro = std::min(share, config.train_micro_batch_size_per_gpu);
  while (share % micro != 0) --micro;
  return micro;
}

}  // namespace

int64_t elastic_group_size(const ElasticityConfig& e) {
  return counts_machines(e) ? e.num_gpus_per_node / e.model_parallel_size : 1;
}

int64_t largest_micro_batch(const ElasticityConfig& e) {
  return e.max_train_batch_size / elastic_group_size(e);
}

ElasticBatch choose_elastic_batch(const ElasticityConfig& e) {
  const int64_t group = elastic_group_size(e);
  const int64_t ranks = counts_machines(e) ? e.num_gpus_per_node : 1;
  const int64_t fewest = std::max<int64_t>(1, e.min_gpus / ranks);
  const int64_t max_groups = std::max<int64_t>(1, e.max_gpus / ranks);
  ElasticBatch best;
  // Batches ascend: without prefer_larger_batch the first of equally good ones is kept, else the
  // last.
  for (const int64_t batch : list_candidate_batches(e.micro_batch_sizes, largest_micro_batch(e))) {
    const std::vector<int64_t> groups =
        fitting_group_counts(batch, e.micro_batch_sizes, fewest, max_groups);
    const size_t needed = best.data_ranks.size() + (e.prefer_larger_batch ? 0 : 1);
    if (!groups.empty() && groups.size() >= needed) best = {batch, groups};
  }
  best.train_batch *= group;
  for (int64_t& count : best.data_ranks) count *= group;
  return best;
}

int64_t elastic_batch_for_ranks(const ElasticityConfig& e, int64_t data_ranks) {
  int64_t best = 0;
  for (const int64_t micro : e.micro_batch_sizes) {
    int64_t unit = 0;
    if (__builtin_mul_overflow(micro, data_ranks, &unit) || unit > e.max_train_batch_size) continue;
    const int64_t batch = e.max_train_batch_size / unit * unit;
    const bool better = e.prefer_larger_batch ? batch > best : batch < best;
    if (best == 0 || better) best = batch;
  }
  return best;
}

int64_t elastic_micro_batch(const ElasticityConfig& e, int64_t train_batch, int64_t data_ranks) {
  const int64_t share = train_batch / data_ranks;
  int64_t best = 0;
  for (const int64_t micro : e.micro_batch_sizes)
    if (share % micro == 0) best = std::max(best, micro);
  return best;
}

int64_t min_remaining_ranks(const Config& config) {
  const int64_t min_ranks = config.elastic.min_ranks;
  return config.elasticity.enabled ? std::max(min_ranks, config.elasticity.min_gpus) : min_ranks;
}

std::vector<BatchShare> list_shares_of_fewer_ranks(const Config& config) {
  std::vector<BatchShare> out;
  const int64_t fewest = min_remaining_ranks(config),
                ranks_per_model = model_ranks(config.parallel);
  for (int64_t data = config.parallel.data - 1;
       fewest > 0 && data > 0 && data * ranks_per_model >= fewest; --data)
    if (const int64_t micro = fit_micro_batch(config, data); micro > 0)
      out.push_back({data, micro, config.train_batch_size / data / micro});
  return out;
}

}  // namespace ftrun

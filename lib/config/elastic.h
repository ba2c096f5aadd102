#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// ElasticBatch is a batch that many different numbers of ranks can divide equally.
struct ElasticBatch {
  /// The number of sequences of an optimizer step; 0 = no batch suits any number of ranks.
  int64_t train_batch = 0;
  /// The numbers of data-parallel ranks that the batch suits, ascending.
  std::vector<int64_t> data_ranks;
};

/// Chooses the batch that is valid for the largest number of rank counts, as DeepSpeed's elasticity
/// does. Candidates are each micro-batch and their least common multiple, times the largest highly
/// composite number that fits. Version 0.2 counts machines instead of ranks. Every micro-batch must
/// be at most largest_micro_batch(), and num_gpus_per_node a multiple of model_parallel_size.
ElasticBatch choose_elastic_batch(const ElasticityConfig& elasticity);

/// Returns the number of data-parallel ranks that join and leave together: 1 in version 0.1, those
/// of one machine in version 0.2.
int64_t elastic_group_size(const ElasticityConfig& elasticity);

/// Returns the largest micro-batch that is allowed.
int64_t largest_micro_batch(const ElasticityConfig& elasticity);

/// Returns the largest batch (the smallest without prefer_larger_batch) that suits exactly this
/// number of data-parallel ranks; 0 = not even one micro-batch for each rank fits.
int64_t elastic_batch_for_ranks(const ElasticityConfig& elasticity, int64_t data_ranks);

/// BatchShare describes how data-parallel ranks share the batch of an optimizer step:
/// train_batch_size = micro_batch × accumulation × data_ranks.
struct BatchShare {
  int64_t data_ranks = 0;
  int64_t micro_batch = 0;
  int64_t accumulation = 0;
  bool operator==(const BatchShare&) const = default;
};

/// Returns how many ranks must remain if some keep failing: the larger of elastic.min_ranks and, if
/// elasticity is enabled, elasticity.min_gpus; 0: all of them.
int64_t min_remaining_ranks(const Config& config);

/// Lists the ways in which fewer data-parallel ranks may divide the batch of a resolved config,
/// most ranks first, down to min_remaining_ranks(). If elasticity is enabled, its micro-batches are
/// used. The tensor, pipeline and context degrees stay the same, and no micro-batch grows unless
/// elasticity lists it. The list is empty if the config allows no fewer ranks.
std::vector<BatchShare> list_shares_of_fewer_ranks(const Config& config);

/// Returns the micro-batch of a rank: the largest one that divides its share; 0 = none does.
int64_t elastic_micro_batch(const ElasticityConfig& elasticity, int64_t train_batch,
                            int64_t data_ranks);

}  // namespace ftrun

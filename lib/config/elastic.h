#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"

namespace ftrun {

/// ElasticBatch is a batch that many numbers of ranks can share equally.
struct ElasticBatch {
  /// Sequences of an optimizer step; 0 = no batch suits any number of ranks.
  int64_t train_batch = 0;
  /// The numbers of data-parallel ranks it suits, ascending.
  std::vector<int64_t> data_ranks;
};

/// Chooses the batch that suits the most numbers of ranks, as DeepSpeed's elasticity does: each
/// micro-batch and their least common multiple, times the largest highly composite number that
/// fits; version 0.2 counts machines instead of ranks. Needs every micro-batch <=
/// largest_micro_batch() and num_gpus_per_node a multiple of model_parallel_size.
ElasticBatch choose_elastic_batch(const ElasticityConfig& elasticity);

/// Computes the data-parallel ranks that join and leave together: 1 in version 0.1, a machine's in
/// version 0.2.
int64_t elastic_group(const ElasticityConfig& elasticity);

/// Computes the largest micro-batch that is allowed.
int64_t largest_micro_batch(const ElasticityConfig& elasticity);

/// Computes the largest batch (the smallest without prefer_larger_batch) for only this number of
/// data-parallel ranks; 0 = not even one micro-batch a rank fits.
int64_t lone_elastic_batch(const ElasticityConfig& elasticity, int64_t data_ranks);

/// BatchShare says how data-parallel ranks share the batch of an optimizer step: train_batch_size =
/// micro_batch × accumulation × data_ranks.
struct BatchShare {
  int64_t data_ranks = 0;
  int64_t micro_batch = 0;
  int64_t accumulation = 0;
  bool operator==(const BatchShare&) const = default;
};

/// Computes how many ranks have to stay when some keep failing: the larger of elastic.min_ranks
/// and, if elasticity is enabled, elasticity.min_gpus; 0: all of them.
int64_t fewest_ranks(const Config& config);

/// Lists how fewer data-parallel ranks may share the batch of a resolved config, most ranks first,
/// down to fewest_ranks(); with the micro-batches of elasticity if it is enabled. The tensor,
/// pipeline and context degrees stay, and no micro-batch grows unless elasticity lists it. Empty if
/// the config allows none.
std::vector<BatchShare> smaller_shares(const Config& config);

/// Computes the micro-batch of a rank: the largest that divides its share; 0 = none does.
int64_t elastic_micro_batch(const ElasticityConfig& elasticity, int64_t train_batch,
                            int64_t data_ranks);

}  // namespace ftrun

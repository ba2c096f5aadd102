#include "config/ranks.h"

#include <algorithm>

#include "base/error.h"

namespace ftrun {
namespace {

int64_t model_ranks(const Config& c) {
  int64_t out = 0;
  const int64_t context = std::max(c.parallel.context, c.sequence_parallel_size);
  const bool overflow = __builtin_mul_overflow(c.parallel.tensor, c.parallel.pipeline, &out) ||
                        __builtin_mul_overflow(out, context, &out);
  return overflow ? 0 : out;
}

std::string mesh_text(const Config& c) {
  return cat("tensor ", c.parallel.tensor, " × pipeline ", c.parallel.pipeline, " × context ",
             std::max(c.parallel.context, c.sequence_parallel_size));
}

RankCount from_batch(const Config& c, int64_t inner) {
  const int64_t total = c.train_batch_size, micro = c.train_micro_batch_size_per_gpu,
                steps = c.gradient_accumulation_steps;
  RankCount out;
  int64_t unit = 0;
  if (__builtin_mul_overflow(micro, steps, &unit)) unit = 0;
  out.rule = cat("train_batch_size ", total, " / (micro ", micro, " × accumulation ", steps, ")");
  if (inner > 1) out.rule += " × " + mesh_text(c);
  if (unit == 0 || total % unit != 0) {
    Problem problem{c.origins.position("train_batch_size"),
                    cat("train_batch_size ", total, " cannot be divided by micro ", micro,
                        " × accumulation ", steps, " = ", unit),
                    "the quotient is the number of data-parallel ranks; or give --nproc"};
    out.problems.push_back(problem);
    return out;
  }
  out.ranks = total / unit * inner;
  return out;
}

RankCount from_mesh(const Config& c, int64_t inner) {
  RankCount out;
  out.rule = cat("the mesh: data ", c.parallel.data, " × ", mesh_text(c));
  if (__builtin_mul_overflow(c.parallel.data, inner, &out.ranks)) {
    out.ranks = 1;
    out.problems.push_back({c.origins.position("parallel.data"), out.rule + " is too large"});
  }
  return out;
}

}  // namespace

RankCount count_ranks(const Config& c, std::optional<int64_t> launcher_world,
                      std::optional<int64_t> nproc) {
  const auto plural = [](int64_t n) { return cat(n, n == 1 ? " rank" : " ranks"); };
  if (launcher_world)
    return {*launcher_world, "the launcher started " + plural(*launcher_world), {}};
  if (nproc) return {*nproc, cat("--nproc ", *nproc), {}};
  const int64_t inner = model_ranks(c);
  if (inner == 0)
    return {1, "one rank", {{c.origins.position("parallel"), mesh_text(c) + " is too large"}}};
  if (c.parallel.data != 0) return from_mesh(c, inner);
  // Where elasticity is on, the ranks decide the batch and not the other way round.
  if (!c.elasticity.enabled && c.train_batch_size != 0 && c.train_micro_batch_size_per_gpu != 0 &&
      c.gradient_accumulation_steps != 0)
    return from_batch(c, inner);
  if (inner > 1) return {inner, "the mesh: data 1 × " + mesh_text(c), {}};
  return {1, "one rank: neither launcher, --nproc, parallel.data nor all batch sizes say more", {}};
}

}  // namespace ftrun

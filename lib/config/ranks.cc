#include "config/ranks.h"

#include <algorithm>
#include <utility>

#include "axes/keys.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

/// Returns the degrees, whichever of their two names each is written under.
ParallelConfig requested_mesh(const WrittenConfig& c) {
  ParallelConfig mesh;
  for (const AxisKeys* axis : kAxes) {
    int64_t degree = 0;
    for (const std::string_view key : axis->degree_keys())
      degree = std::max(degree, c.get<int64_t>(std::string(key)));
    axis->degree_in(mesh) = degree;
  }
  return mesh;
}

/// Counts data × ranks_per_model ranks, and reports if they are too many; `at` is where the first
/// factor is written.
RankCount multiply_ranks(const std::string& rule, int64_t data, int64_t ranks_per_model,
                         Position at) {
  RankCount out;
  out.rule = rule;
  if (!__builtin_mul_overflow(data, ranks_per_model, &out.ranks) && out.ranks <= kMaxRanks)
    return out;
  out.ranks = ranks_per_model;  // the error then concerns only the first factor
  out.problems.push_back(
      {std::move(at), rule + " is too large", cat("a run has at most ", kMaxRanks, " ranks")});
  return out;
}

/// BatchKeys holds the three batch sizes; 0 = not written.
struct BatchKeys {
  int64_t total, micro, accumulation;
  bool is_complete() const { return total != 0 && micro != 0 && accumulation != 0; }
};

BatchKeys read_batch_keys(const WrittenConfig& c) {
  return {c.get<int64_t>("train_batch_size"), c.get<int64_t>("train_micro_batch_size_per_gpu"),
          c.get<int64_t>("gradient_accumulation_steps")};
}

RankCount count_by_batch(const WrittenConfig& c, const ParallelConfig& mesh,
                         int64_t ranks_per_model) {
  const auto [total, micro, accumulation] = read_batch_keys(c);
  RankCount out;
  int64_t unit = 0;
  if (__builtin_mul_overflow(micro, accumulation, &unit)) unit = 0;
  out.rule =
      cat("train_batch_size ", total, " / (micro ", micro, " × accumulation ", accumulation, ")");
  if (ranks_per_model > 1) out.rule += " × " + model_degrees(mesh);
  if (unit == 0 || total % unit != 0) {
    Problem problem{c.origins.position("train_batch_size"),
                    cat("train_batch_size ", total, " cannot be divided by micro ", micro,
                        " × accumulation ", accumulation, " = ", unit),
                    "the quotient is the number of data-parallel ranks; or give --nproc"};
    out.problems.push_back(problem);
    return out;
  }
  return multiply_ranks(out.rule, total / unit, ranks_per_model,
                        c.origins.position("train_batch_size"));
}

RankCount count_by_mesh(const WrittenConfig& c, const ParallelConfig& mesh,
                        int64_t ranks_per_model) {
  RankCount out = multiply_ranks("the mesh: " + mesh_text(mesh), mesh.data, ranks_per_model,
                                 c.origins.position("parallel.data"));
  out.rule_names_mesh = true;
  return out;
}

}  // namespace

int64_t model_ranks(const ParallelConfig& mesh) {
  int64_t out = 1;
  for (const AxisKeys* axis : kAxes)
    if (axis->ranks.value == AxisRanks::kModel &&
        __builtin_mul_overflow(out, axis->degree_in(mesh), &out))
      return 0;
  return out > kMaxRanks ? 0 : out;
}

std::vector<std::string> model_degrees(const ParallelConfig& mesh, std::string_view between) {
  std::vector<std::string> parts;
  for (const AxisKeys* axis : kAxes)
    if (axis->ranks.value == AxisRanks::kModel && axis->degree_in(mesh) > 1)
      parts.push_back(cat(axis->name(), between, axis->degree_in(mesh)));
  return parts;
}

std::string model_degrees(const ParallelConfig& mesh) {
  return join(model_degrees(mesh, " "), " × ");
}

std::string mesh_text(const ParallelConfig& mesh) {
  const std::string degrees = model_degrees(mesh);
  return cat("data ", mesh.data, degrees.empty() ? "" : " × ", degrees);
}

RankCount count_ranks(const WrittenConfig& c, std::optional<int64_t> launcher_world,
                      std::optional<int64_t> nproc) {
  if (launcher_world)
    return {*launcher_world, "the launcher started " + count_text(*launcher_world, "rank"), {}};
  if (nproc) return {*nproc, cat("--nproc ", *nproc), {}};
  ParallelConfig mesh = requested_mesh(c);
  const int64_t ranks_per_model = model_ranks(mesh);
  if (ranks_per_model == 0)
    return {
        1, "one rank", {{c.origins.position("parallel"), model_degrees(mesh) + " is too large"}}};
  if (mesh.data != 0) return count_by_mesh(c, mesh, ranks_per_model);
  // If elasticity is enabled, the ranks determine the batch and not the other way round.
  if (!c.get<bool>("elasticity.enabled") && read_batch_keys(c).is_complete())
    return count_by_batch(c, mesh, ranks_per_model);
  mesh.data = 1;
  if (ranks_per_model > 1) return {ranks_per_model, "the mesh: " + mesh_text(mesh), {}, true};
  return {1,
          "one rank: no launcher, --nproc or parallel.data, and not all batch sizes, give a number",
          {}};
}

}  // namespace ftrun

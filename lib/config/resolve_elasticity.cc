#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/elastic.h"
#include "config/ranks.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

constexpr size_t kMaxMicroBatches = 64;

bool refuse(ResolveState& r, const std::string& path, std::string message, std::string remedy) {
  r.error(path, std::move(message), std::move(remedy));
  return false;
}

bool check_needed_keys(ResolveState& r) {
  bool has_all = true;
  for (const char* key : {"max_train_batch_size", "micro_batch_sizes"})
    if (!r.is_written(cat("elasticity.", key)))
      has_all = refuse(r, "elasticity", cat("elasticity needs ", key, " when it is enabled"),
                       cat("write elasticity.", key));
  return has_all;
}

/// Formats the model-parallel degrees: "tensor 2 × context 2 = 4", "tensor 2", "tensor 1".
std::string degrees_text(const ParallelConfig& mesh, int64_t ranks) {
  const std::string degrees = model_degrees(mesh);
  if (degrees.empty()) return "tensor 1";
  return degrees.find("×") == std::string::npos ? degrees : cat(degrees, " = ", ranks);
}

/// Sets the section's model_parallel_size to the number of ranks that hold one model; refuses a
/// written value that differs.
bool check_model_ranks(ResolveState& r) {
  ElasticityConfig& e = r.config.elasticity;
  const ParallelConfig& mesh = r.config.parallel;
  const int64_t ranks = std::max<int64_t>(1, model_ranks(mesh));
  const std::string path = "elasticity.model_parallel_size";
  if (r.is_written(path) && e.model_parallel_size != ranks)
    return refuse(r, path,
                  cat(path, " ", e.model_parallel_size, " contradicts ", degrees_text(mesh, ranks)),
                  "remove it: it follows from parallel");
  e.model_parallel_size = ranks;
  return true;
}

bool check_version(ResolveState& r) {
  const ElasticityConfig& e = r.config.elasticity;
  if (e.version != 0.1 && e.version != 0.2)
    return refuse(r, "elasticity.version",
                  cat("elasticity.version: expected 0.1 or 0.2, found ", number_text(e.version)),
                  "use 0.2");
  if (e.version == 0.1 && e.model_parallel_size > 1)
    return refuse(r, "elasticity.version",
                  cat("elasticity.version 0.1 does not support model parallelism, and ",
                      e.model_parallel_size, " ranks share a model"),
                  "use 0.2");
  if (e.version == 0.2 && e.num_gpus_per_node % e.model_parallel_size != 0)
    return refuse(
        r, "elasticity.num_gpus_per_node",
        cat("elasticity.num_gpus_per_node ", e.num_gpus_per_node, " cannot be divided by the ",
            e.model_parallel_size, " ranks that share a model"),
        "write the ranks of a machine");
  return true;
}

bool check_limits(ResolveState& r) {
  const ElasticityConfig& e = r.config.elasticity;
  if (e.min_gpus > e.max_gpus)
    return refuse(r, "elasticity.min_gpus",
                  cat("elasticity.min_gpus ", e.min_gpus, " > max_gpus ", e.max_gpus),
                  "swap min_gpus and max_gpus");
  if (e.micro_batch_sizes.size() > kMaxMicroBatches)
    return refuse(r, "elasticity.micro_batch_sizes",
                  cat("elasticity.micro_batch_sizes holds ", e.micro_batch_sizes.size(),
                      " sizes, more than ", kMaxMicroBatches),
                  "keep those that run well");
  const int64_t largest_size =
      *std::max_element(e.micro_batch_sizes.begin(), e.micro_batch_sizes.end());
  if (largest_size > largest_micro_batch(e))
    return refuse(r, "elasticity.micro_batch_sizes",
                  cat("micro-batch ", largest_size, " × ",
                      count_text(elastic_group_size(e), "data-parallel rank"),
                      " is more than elasticity.max_train_batch_size ", e.max_train_batch_size),
                  "raise max_train_batch_size or remove that micro-batch size");
  return true;
}

std::string rank_counts_text(const std::vector<int64_t>& numbers) {
  std::vector<std::string> parts;
  for (const int64_t number : numbers) parts.push_back(std::to_string(number));
  if (parts.size() > 24) {
    parts.resize(24);
    parts.emplace_back("...");
  }
  return join(parts, ", ");
}

/// Computes the batch for a number of ranks that the chosen batch does not suit: version 0.2
/// chooses a separate batch, version 0.1 refuses the number.
int64_t batch_for_unlisted_ranks(ResolveState& r, const ElasticBatch& chosen) {
  const ElasticityConfig& e = r.config.elasticity;
  const int64_t ranks = r.config.parallel.data;
  const std::string ranks_text = cat("elasticity: ", count_text(ranks, "data-parallel rank"));
  const std::string suited_text =
      chosen.train_batch == 0 ? "" : cat(" (it suits ", rank_counts_text(chosen.data_ranks), ")");
  const int64_t separate_batch = e.version == 0.2 ? elastic_batch_for_ranks(e, ranks) : 0;
  const std::string degrees = model_degrees(r.config.parallel);
  if (separate_batch == 0)
    r.error("elasticity.enabled",
            cat(ranks_text, " cannot share train_batch_size ", chosen.train_batch, suited_text),
            cat("start one of these numbers of ", degrees.empty() ? "ranks" : "data-parallel ranks",
                degrees.empty() ? "" : cat(" × ", degrees),
                ", or change max_train_batch_size or micro_batch_sizes"));
  else
    r.notice("elasticity.enabled",
             cat(ranks_text, " cannot share train_batch_size ", chosen.train_batch, suited_text,
                 "; as in DeepSpeed, version 0.2 then uses train_batch_size ", separate_batch,
                 " for this number of ranks only"));
  return separate_batch;
}

struct ChosenBatch {
  int64_t total, micro, accumulation;
};

/// Compares the written batch keys with elasticity's choice: equal values are redundant, other
/// values contradict it.
void compare_batch_keys(ResolveState& r, const ChosenBatch& choice) {
  const Config& c = r.config;
  const auto differs = [&](const char* key, int64_t written, int64_t chosen) {
    return r.is_written(key) && written != chosen;
  };
  const bool other =
      differs("train_batch_size", c.train_batch_size, choice.total) ||
      differs("train_micro_batch_size_per_gpu", c.train_micro_batch_size_per_gpu, choice.micro) ||
      differs("gradient_accumulation_steps", c.gradient_accumulation_steps, choice.accumulation);
  if (!other) return;
  const std::string says =
      cat("elasticity chooses train_batch_size ", choice.total, " = micro ", choice.micro,
          " × accumulation ", choice.accumulation, " × data-parallel ", c.parallel.data);
  if (c.elasticity.ignore_non_elastic_batch_info)
    r.notice("elasticity.enabled", says + "; the batch keys are ignored");
  else
    r.error("elasticity.enabled", says + ", but the batch keys give other values",
            "remove the batch keys, or write elasticity.ignore_non_elastic_batch_info: true");
}

std::optional<ChosenBatch> choose_batch(ResolveState& r) {
  const ElasticityConfig& e = r.config.elasticity;
  const int64_t ranks = r.config.parallel.data;
  const ElasticBatch chosen = choose_elastic_batch(e);
  const bool inside = std::binary_search(chosen.data_ranks.begin(), chosen.data_ranks.end(), ranks);
  const int64_t total = inside ? chosen.train_batch : batch_for_unlisted_ranks(r, chosen);
  if (total == 0) return std::nullopt;
  const int64_t micro = elastic_micro_batch(e, total, ranks);
  r.lines.push_back({"train_batch_size",
                     cat("elastic: train_batch_size = ", total, ", micro-batch ", micro,
                         ", accumulation ", total / ranks / micro, " on ",
                         count_text(ranks, "data-parallel rank"),
                         inside ? cat("; numbers of data-parallel ranks that can share it: ",
                                      rank_counts_text(chosen.data_ranks))
                                : "")});
  return ChosenBatch{total, micro, total / ranks / micro};
}

}  // namespace

void resolve_elasticity(ResolveState& r) {
  Config& c = r.config;
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    r.decided_keys.insert(key);
  const bool sound =
      check_needed_keys(r) && check_model_ranks(r) && check_version(r) && check_limits(r);
  if (!sound) return;
  const std::optional<ChosenBatch> choice = choose_batch(r);
  if (!choice) return;
  compare_batch_keys(r, *choice);
  c.train_batch_size = choice->total;
  c.train_micro_batch_size_per_gpu = choice->micro;
  c.gradient_accumulation_steps = choice->accumulation;
}

}  // namespace ftrun

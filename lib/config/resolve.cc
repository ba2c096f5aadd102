#include "config/resolve.h"

#include <algorithm>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/ranks.h"
#include "config/resolve_state.h"
#include "config/schema.h"
#include "config/unsupported.h"
#include "config/write.h"
#include "config/written_config.h"

namespace ftrun {

void ResolveState::error(const std::string& path, std::string message, std::string remedy) {
  problems.error(config.origins.position(path), std::move(message), std::move(remedy));
}

void ResolveState::notice(const std::string& path, std::string message, std::string remedy) {
  problems.notice(config.origins.position(path), std::move(message), std::move(remedy), path);
}

void ResolveState::record_decision(const std::string& path, const std::string& value,
                                   const std::string& reason) {
  decided_keys.insert(path);
  lines.push_back(
      {path, cat(is_auto(path) ? "auto: " : "default: ", path, " = ", value, " (", reason, ")")});
}

std::vector<std::string> line_texts(const std::vector<ResolvedLine>& lines) {
  std::vector<std::string> texts;
  for (const ResolvedLine& line : lines) texts.push_back(line.text);
  return texts;
}

std::string value_text(const Config& config, const std::string& path) {
  const Field& field = Schema::get().at(path);
  return yaml_text(field.load ? effective_value(config, field) : field.default_value);
}

namespace {

/// Refuses a pattern whose expressions and values, which are two keys, do not have the same number.
void check_pattern_lengths(ResolveState& r, const std::string& name, size_t expressions,
                           const std::string& values_name, size_t values) {
  if (expressions == values) return;
  const std::string path = cat("adapter.", name), values_path = cat("adapter.", values_name);
  r.error(r.is_written(path) ? path : values_path,
          cat(path, ": ", expressions, " expressions, ", values, " values"),
          cat("write ", name, ": {expression: value}"));
}

}  // namespace

void resolve_adapter(ResolveState& r) {
  AdapterConfig& adapter = r.config.adapter;
  if (r.is_written("adapter") && !r.is_written("adapter.type")) adapter.type = AdapterType::kLora;
  if (adapter.type != AdapterType::kLora) return;
  check_pattern_lengths(r, "rank_pattern", adapter.rank_pattern.size(), "rank_pattern_ranks",
                        adapter.rank_pattern_ranks.size());
  check_pattern_lengths(r, "alpha_pattern", adapter.alpha_pattern.size(), "alpha_pattern_alphas",
                        adapter.alpha_pattern_alphas.size());
}

void resolve_quantization(ResolveState& r) {
  QuantizationConfig& quantization = r.config.quantization;
  if (r.is_written("quantization") && !r.is_written("quantization.type"))
    r.error("quantization", "quantization has no type", "write type: nf4, or type: int8");
  if (quantization.block != 64 && quantization.block != 128 && quantization.block != 256)
    r.error("quantization.block", cat("quantization.block is ", quantization.block),
            "use 64, 128 or 256");
  if (quantization.type == QuantizationType::kNf4) return;
  const bool int8 = quantization.type == QuantizationType::kInt8;
  for (const char* key : {"double", "block"})
    if (r.is_written(cat("quantization.", key)) && r.is_written("quantization.type"))
      r.notice(cat("quantization.", key),
               cat("quantization.", key, " has no effect ",
                   int8 ? "on int8, which has one scale per row" : "where nothing is quantized"));
  quantization = {.type = quantization.type};
}

void resolve_checkpoint(ResolveState& r) {
  if (r.config.checkpoint.keep_last != 1) return;
  r.config.checkpoint.keep_last = 2;
  r.notice(
      "checkpoint.keep_last",
      "checkpoint.keep_last 1 is raised to 2, so that an older checkpoint remains if the newest "
      "is damaged");
}

/// Resolves the packing. Rows of conversations are packed by documents, because attention from one
/// chat to the next would train something wrong.
void resolve_data(ResolveState& r) {
  const DataConfig& data = r.config.data;
  if (!data.train_weights.empty() && data.train_weights.size() != data.train.size())
    r.error("data.train_weights",
            cat("data.train_weights has ", count_text(std::ssize(data.train_weights), "number"),
                ", data.train ", count_text(std::ssize(data.train), "data set")),
            "give each data set a weight, or none: train_weights: []");
  if (r.is_written("data.packing") || !r.context.conversations) return;
  r.decide("data.packing", r.config.data.packing, SequencePacking::kDocuments,
           "data.train holds conversations");
}

void resolve_device(ResolveState& r) {
  if (!r.is_undecided("device") || r.context.gpus == 0) return;
  const std::string gpus = count_text(r.context.gpus, "GPU");
  const auto keep_cpu = [&](const std::string& reason, const std::string& remedy) {
    r.notice("device",
             cat("device: auto selects the CPU, although this machine shows ", gpus, ": ", reason),
             remedy);
  };
  if (r.config.comm.backend == BackendChoice::kGloo)
    return keep_cpu("comm.backend gloo is not supported there",
                    "remove it to train on GPUs, or write device: cpu");
  if (r.context.local_ranks > r.context.gpus)
    return keep_cpu(cat("it has ", r.context.local_ranks, " ranks, and each needs its own GPU"),
                    "start one rank per GPU, or write device: cpu");
  r.config.auto_keys.erase("device");
  r.decide("device", r.config.device, DeviceKind::kCuda, cat("this machine shows ", gpus));
}

void report_undecided_keys(ResolveState& r) {
  for (const auto& [path, origin] : r.config.origins.keys)
    if (origin.is_auto && r.decided_keys.count(path) == 0)
      r.record_decision(path, value_text(r.config, path), "its default");
}

namespace {

/// Resolves a config that starts with the written values.
ResolvedConfig resolve_from(Config start, const ResolveContext& context) {
  ResolvedConfig out;
  out.config = std::move(start);
  Problems problems;
  ResolveState r{out.config, context, problems, out.lines, {}};
  resolve_mesh(r);
  resolve_device(r);
  resolve_train(r);
  resolve_adapter(r);
  resolve_quantization(r);
  resolve_checkpoint(r);
  resolve_best_mode(r);
  resolve_data(r);
  resolve_precision(r);
  resolve_batch(r);
  resolve_pipeline(r);
  resolve_optimizer(r);
  resolve_scheduler(r);
  resolve_zero(r);
  report_undecided_keys(r);
  check_contradictions(r);
  out.problems = problems.sorted();
  out.unsupported = unsupported_requests(out.config);
  return out;
}

}  // namespace

ResolvedConfig resolve(const WrittenConfig& written, const ResolveContext& context) {
  return resolve_from(with_defaults(written), context);
}

std::set<std::string> list_objections(const Config& resolved) {
  const ParallelConfig& mesh = resolved.parallel;
  ResolveContext context;
  context.world_size = std::max<int64_t>(1, mesh.data) * model_ranks(mesh);
  const ResolvedConfig resolution = resolve_from(resolved, context);
  std::set<std::string> objections;
  for (const Problem& problem : resolution.problems)
    if (problem.severity == Severity::kError) objections.insert(problem.message);
  for (const UnsupportedRequest& request : resolution.unsupported)
    objections.insert(request.feature);
  return objections;
}

}  // namespace ftrun

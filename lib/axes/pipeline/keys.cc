#include <regex.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>

#include "axes/keys.h"
#include "axes/pipeline/keys.h"
#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/nearest_multiples.h"
#include "config/resolve_state.h"

namespace ftrun {
namespace {

/// Class names against which expressions are matched: some of transformers', and those of
/// Megatron-DeepSpeed and GPT-NeoX.
constexpr const char* kDecoderLayers[] = {
    "LlamaDecoderLayer", "MistralDecoderLayer",          "Qwen2DecoderLayer", "Qwen3DecoderLayer",
    "TransformerLayer",  "ParallelTransformerLayerPipe", "TransformerBlock"};

/// The endings of transformers' class names of decoder layers: Gemma2DecoderLayer, GPT2Block,
/// GPTNeoXLayer.
constexpr std::string_view kLayerEnds[] = {"DecoderLayer", "Block", "NeoXLayer"};

/// Returns whether an expression is the class name of a decoder layer, of any model family.
bool names_decoder_layer(std::string_view expression) {
  const bool is_name = std::all_of(expression.begin(), expression.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
  return is_name && std::any_of(std::begin(kLayerEnds), std::end(kLayerEnds),
                                [&](std::string_view end) { return expression.ends_with(end); });
}

constexpr const char* kTypePrefix = "type:";

/// Returns whether an expression matches a class name of decoder layers, ignoring case.
bool matches_decoder_layers(const std::string& expression) {
  if (names_decoder_layer(expression)) return true;
  regex_t compiled;
  if (::regcomp(&compiled, expression.c_str(), REG_EXTENDED | REG_ICASE | REG_NOSUB) != 0)
    return false;
  const bool matches =
      std::any_of(std::begin(kDecoderLayers), std::end(kDecoderLayers),
                  [&](const char* name) { return ::regexec(&compiled, name, 0, nullptr, 0) == 0; });
  ::regfree(&compiled);
  return matches;
}

void resolve_chunks(ResolveState& r) {
  ParallelConfig& p = r.config.parallel;
  const std::string path = "parallel.virtual_stages";
  const PipelineScheduleTraits& schedule = traits_of(p.schedule);
  const int64_t usual = schedule.default_chunks;
  if (p.virtual_stages == 0) {
    p.virtual_stages = usual;
    if (schedule.chunks_configurable || r.is_auto(path))
      r.record_decision(path, std::to_string(usual), cat("schedule ", schedule.name));
  } else if (schedule.chunks_configurable && p.virtual_stages == 1) {
    r.error(path,
            cat(path, " is 1, but schedule ", schedule.name,
                " needs at least 2 model chunks per stage"),
            cat("write 2 or more, or parallel.schedule: ", name_of(kDefaultSchedule)));
  } else if (!schedule.chunks_configurable && p.virtual_stages != usual) {
    r.error(path,
            cat(path, " ", p.virtual_stages, " cannot be used with schedule ", schedule.name,
                ", which has ", count_text(usual, "model chunk"), " per stage"),
            "remove it, or write parallel.schedule: interleaved");
  }
}

void check_rounds(ResolveState& r) {
  const ParallelConfig& p = r.config.parallel;
  const int64_t count = r.config.gradient_accumulation_steps;
  if (!traits_of(p.schedule).runs_in_rounds || count % p.pipeline == 0) return;
  r.error(r.is_written("gradient_accumulation_steps") ? "gradient_accumulation_steps"
                                                      : "parallel.schedule",
          cat("schedule ", name_of(p.schedule),
              " runs micro-batches in rounds of one per stage: gradient_accumulation_steps ", count,
              " cannot be divided by pipeline ", p.pipeline),
          nearest_multiples_text("use", count, p.pipeline));
}

void check_layers(ResolveState& r) {
  const ParallelConfig& p = r.config.parallel;
  const std::string path = "parallel.pipeline_layers";
  const auto count = static_cast<int64_t>(p.pipeline_layers.size());
  if (count == 0) return;
  if (static_cast<double>(count) != pipeline_model_chunks(p))
    return r.error(
        path,
        cat(path, " has ", count_text(count, "number"), " for ", pipeline_model_chunks_text(p)),
        "write the number of decoder layers of each chunk");
  for (size_t k = 1; k + 1 < p.pipeline_layers.size(); ++k)
    if (p.pipeline_layers[k] == 0)
      return r.error(path, cat(path, ": chunk ", k, " has no decoder layer"),
                     "give every chunk at least one; only the first and the last may have 0");
  if (r.config.pipeline.partition != PipelineConfig{}.partition)
    r.error(path,
            cat(path, " and pipeline.partition ", r.config.pipeline.partition,
                " both say where the model is cut"),
            "keep one of the two");
}

void check_partition(ResolveState& r) {
  const std::string& text = r.config.pipeline.partition;
  if (parse_pipeline_balance(text)) return;
  if (text.starts_with(kTypePrefix))
    r.error(
        "pipeline.partition", cat("pipeline.partition \"", text, "\" matches no decoder layer"),
        "write type:decoder or type:transformer, or best, which balances the cost of the chunks");
  else
    r.error(
        "pipeline.partition",
        cat("pipeline.partition: expected one of best, parameters, uniform, type:REGEX, found \"",
            text, "\""));
}

void check_unit(ResolveState& r) {
  if (r.config.partition.unit != UnitGranularity::kModel) return;
  r.error("partition.unit",
          cat("partition.unit model makes one unit of all layers, and pipeline ",
              r.config.parallel.pipeline, " puts them on different ranks"),
          "use layer or block");
}

/// Adds a notice for each key that has no effect with a single stage.
void report_unused_keys(ResolveState& r) {
  const ParallelConfig& p = r.config.parallel;
  const auto unused = [&](const std::string& path, const std::string& value) {
    r.notice(path, cat(path, value, ": only has an effect if parallel.pipeline is above 1"));
  };
  if (p.schedule != ParallelConfig{}.schedule)
    unused("parallel.schedule", cat(" ", name_of(p.schedule)));
  if (p.virtual_stages > 1) unused("parallel.virtual_stages", cat(" ", p.virtual_stages));
  if (!p.pipeline_layers.empty()) unused("parallel.pipeline_layers", "");
}

}  // namespace

constinit const AxisKeys keys::pipeline{
    .key = "parallel.pipeline",
    .degree = &ParallelConfig::pipeline,
    .deepspeed_key = "pipeline.stages",
    .deepspeed_degree = [](const Config& c) { return c.pipeline.stages; },
    .ranks = AxisRanks::kModel,
    .support = AxisSupport::kEmulated,
    .feature = "pipelines",
    .check = nullptr,  // resolve_pipeline() does it, because it needs the batch
    .suggest_degrees = nullptr};

int64_t mesh_sizes::pipeline(const Config& config) {
  return std::max<int64_t>(1, config.parallel.pipeline);
}

std::optional<PipelineBalance> parse_pipeline_balance(const std::string& text) {
  const std::string word = to_lower_case(text);
  if (word == "best") return PipelineBalance::kCost;
  if (word == "parameters") return PipelineBalance::kParameters;
  if (word == "uniform") return PipelineBalance::kLayers;
  const std::string prefix = kTypePrefix;
  if (word.starts_with(prefix) && matches_decoder_layers(text.substr(prefix.size())))
    return PipelineBalance::kBlocks;
  return std::nullopt;
}

double pipeline_model_chunks(const ParallelConfig& mesh) {
  return static_cast<double>(mesh.pipeline) * static_cast<double>(mesh.virtual_stages);
}

std::string pipeline_model_chunks_text(const ParallelConfig& mesh) {
  return cat(number_text(pipeline_model_chunks(mesh)), " chunks (pipeline ", mesh.pipeline,
             mesh.virtual_stages > 1 ? cat(" × virtual_stages ", mesh.virtual_stages) : "", ")");
}

void resolve_pipeline(ResolveState& r) {
  ParallelConfig& p = r.config.parallel;
  check_partition(r);
  if (p.pipeline == 1) {
    report_unused_keys(r);
    p.virtual_stages = 1;
    return;
  }
  resolve_chunks(r);
  check_rounds(r);
  check_layers(r);
  check_unit(r);
}

}  // namespace ftrun

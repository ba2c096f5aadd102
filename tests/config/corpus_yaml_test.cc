#include "base/error.h"
#include "config/load.h"
#include "config/resolve.h"
#include "corpus.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

// These tests read real YAML files of related programs. The program is recognized, and the message
// says what to pass instead. A person has reviewed corpus_yaml.golden line by line.

namespace ftrun {
namespace {

std::string verdict_line(const std::string& folder, const std::string& file) {
  const LoadResult loaded = load_config({folder + "/" + file});
  std::string out = cat(file, "\t", loaded.ok() ? "valid" : "invalid");
  for (const Problem& p : loaded.problems)
    if (p.severity == Severity::kError)
      out += cat("\t", p.at.line, ":", p.at.column, "\t", p.message, "\t", p.remedy);
  return out + "\n";
}

}  // namespace

TEST_CASE("real YAML files of other programs are recognized by program", "[.needs-reference]") {
  const std::string folder = corpus_folder();
  std::string found;
  const std::vector<std::string> files = corpus_files({".yaml", ".yml"});
  REQUIRE(files.size() == 62);
  for (const std::string& file : files) found += verdict_line(folder, file);
  REQUIRE(compare_golden(testing::source_dir() + "/tests/config/corpus_yaml.golden", found) == "");
}

TEST_CASE("the DeepSpeed keys of a real gpt-neox file are a valid config by themselves") {
  // The training keys are those of pythia 70M, moved as the message says.
  const LoadResult loaded = load_config_text("ds.yaml", R"(
"optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1.0e-8}}
"zero_optimization":
  "stage": 1
  "allgather_partitions": True
  "allgather_bucket_size": 500000000
  "overlap_comm": True
  "contiguous_gradients": True
"train_micro_batch_size_per_gpu": 4
"gradient_clipping": 1.0
"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 2}
)");
  REQUIRE(loaded.problems.empty());
  const ResolvedConfig resolved = resolve(loaded.written, {});
  REQUIRE(resolved.problems.empty());
  REQUIRE(resolved.config.optimizer.betas[1] == 0.95);
  REQUIRE(resolved.config.fp16.initial_scale_power == 12);
  REQUIRE(resolved.config.zero.overlap_comm);
  REQUIRE(resolved.unsupported.empty());
}

}  // namespace ftrun

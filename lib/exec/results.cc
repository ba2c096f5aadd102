#include "exec/results.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/hf_export.h"
#include "exec/generate.h"
#include "model/detokenizer.h"
#include "report/machine.h"
#include "report/table.h"

namespace ftrun {
namespace {

DType export_dtype(ExportDtype wanted, std::optional<DType> models_own) {
  if (wanted == ExportDtype::kBf16) return DType::kBF16;
  return wanted == ExportDtype::kAuto && models_own == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

/// The first `count` tokens of the validation set's first row.
std::vector<int32_t> first_tokens(const SampleSet& validation, int64_t vocab_rows, int64_t count) {
  RowReader reader(validation, vocab_rows);
  Batch batch;
  reader.start(batch, 1);
  reader.fill(batch, 0, 0);
  batch.tokens.resize(std::min(batch.tokens.size(), static_cast<size_t>(count)));
  return batch.tokens;
}

}  // namespace

void export_weights(const Config& config, TrainingSetup& setup, const std::string& folder) {
  ExportOptions options;
  options.folder = folder;
  options.source_folder = setup.folder().path();
  options.config_json = setup.folder().config_json();
  options.dtype = export_dtype(config.model_export.dtype, setup.model_config().dtype);
  std::vector<ExportTensor> tensors;
  for (const TensorInfo& tensor : setup.train().model.tensors)
    tensors.push_back({tensor.name, tensor.shape});
  export_model(posix_files(), options, tensors,
               [&](const ExportPiece& piece, std::span<float> out) {
                 setup.state().read(piece.tensor, piece.begin, piece.end, out);
               });
}

std::string sample_text(const Config& config, TrainingSetup& setup, const SampleSet& validation) {
  const GenerateConfig& wanted = config.train.generate;
  const std::string tokenizer = setup.folder().path() + "/tokenizer.json";
  if (wanted.prompt_tokens == 0 || !posix_files().exists(tokenizer)) return "";
  const Detokenizer words = Detokenizer::parse(read_file(tokenizer), tokenizer);
  TrainingSetup::Writer& writer = setup.writer();
  const ModelDescription& model = writer.plan.model;
  const std::vector<int32_t> prompt = first_tokens(
      validation, model.vocab_rows, std::min(wanted.prompt_tokens, model.batch.row_tokens));
  const GenerateOptions options{wanted.tokens, wanted.temperature,
                                static_cast<uint64_t>(config.train.seed),
                                setup.model_config().eos_ids};
  const std::vector<int32_t> text =
      generate(*writer.executor, model, setup.memory(), prompt, options);
  return cat("\nsample (the validation text's first ", prompt.size(),
             " tokens, continued by the model):\n", words.decode(prompt), " >>>",
             words.decode(text), "\n");
}

std::string memory_text(const TrainingSetup& setup) {
  std::map<std::string, int64_t> planned;
  for (const auto& [category, bytes] : memory_account(setup.train().program).by_category)
    planned[std::string(category_name(category))] = bytes;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [category, bytes] : setup.memory().allocated())
    rows.push_back({category, human_bytes(planned[category]), human_bytes(bytes)});
  const ProcessMemory process = read_process_memory();
  return "\nmemory of rank 0\n" +
         format_table({"category", "training program", "allocated"}, rows) +
         cat("process: ", human_bytes(process.anonymous + process.shared_memory),
             " anonymous and shared now, ", human_bytes(process.peak_resident),
             " resident at most (with mapped files)");
}

}  // namespace ftrun

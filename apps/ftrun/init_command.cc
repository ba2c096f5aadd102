#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/amount_text.h"
#include "base/cores.h"
#include "base/enum_names.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub_cache.h"
#include "base/memory_limit.h"
#include "base/new_file.h"
#include "base/round_up.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cluster/visible_gpus.h"
#include "commands.h"
#include "config/write.h"
#include "config_source.h"
#include "data/conversations.h"
#include "data/data_file.h"
#include "data/sequence_set.h"
#include "inputs/sequence_options.h"
#include "machine/machine_file.h"
#include "model/families.h"
#include "model/size.h"
#include "new_file_checks.h"
#include "nodes_option.h"
#include "optimizers/optimizer_config.h"
#include "plan_search.h"
#include "search_text.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

struct InitOptions {
  std::string model;
  std::string data;
  std::string machine;
  std::string out = "train.yaml";
  int64_t nodes = 1;
  double seconds = 10;
};

/// DataPaths holds the data of a run: the values of data.train and data.validation.
struct DataPaths {
  std::string train;
  std::string validation;
};

/// InitMachine is the machine for which a config is made, and the source of its rates.
struct InitMachine {
  Machine machine;
  std::string source;
};

/// TrainingVariant is a way to train. kVariants is ordered from the variant that usually reaches
/// the lowest loss to the one that needs the least memory.
struct TrainingVariant {
  const char* name;
  /// Lines of YAML.
  const char* sections;
  double learning_rate;
};

constexpr std::array<TrainingVariant, 3> kVariants{
    {{"all weights", "", 2e-5},
     {"a LoRA adapter",
      "adapter: {type: lora, r: 16, lora_alpha: 32, target_modules: all-linear}\n", 2e-4},
     {"a LoRA adapter on a base of four bits per weight (QLoRA)",
      "adapter: {type: lora, r: 16, lora_alpha: 32, target_modules: all-linear}\n"
      "quantization: {type: nf4}\n",
      2e-4}}};

/// The maximum number of tokens of a sequence; all kinds of models were trained on sequences of
/// this length.
constexpr int64_t kMaxSequenceLengthOnGpus = 2048;
constexpr int64_t kMaxSequenceLengthOnCpus = 512;
constexpr int64_t kMaxTokensPerStep = 524288;
/// The minimum number of steps of a run if there is enough data.
constexpr int64_t kMinStepsPerRun = 100;
/// Epochs for text, and for conversations, of which there are usually fewer.
constexpr int64_t kEpochs = 1;
constexpr int64_t kEpochsOfConversations = 3;

/// Returns the data to which a name refers. A folder holds the files train and validation as
/// prepare_data.py writes them; a data set of the Hub may also hold them. Any other name is the
/// name of the training data itself.
DataPaths find_data_paths(const std::string& data_name) {
  std::error_code error;
  const auto has_split = [](const std::string& folder, const char* split) {
    return find_data_file(cat(folder, "/", split)).has_value();
  };
  if (fs::is_directory(data_name, error)) {
    if (!has_split(data_name, "train"))
      throw Error(ExitCode::kBadInput,
                  cat(data_name, ": contains no training data (train.bin or train.jsonl)"),
                  cat("run scripts/prepare_data.py --tokenizer MODEL --out ", data_name,
                      " FILE to create it from text, chats or tables"));
    return {cat(data_name, "/train"),
            has_split(data_name, "validation") ? cat(data_name, "/validation") : ""};
  }
  if (find_data_file(data_name) || !parse_hub_name(data_name)) return {data_name, ""};
  const bool has_validation = is_in_hub_cache(data_name, HubKind::kDataset) &&
                              has_split(find_data_set(data_name).folder, "validation");
  return {data_name, has_validation ? data_name : ""};
}

/// Returns a machine for which there are no measurements: this machine's cores, with the rates of a
/// common server.
Machine assumed_cpu_machine() {
  constexpr double kFlopsPerCore = 50e9, kMemoryBandwidth = 8e9, kLatency = 20e-6, kBandwidth = 4e9;
  Machine machine;
  machine.name = "these cores, at the rates of a common server";
  machine.devices = count_usable_cores();
  for (int ranks = 1; ranks <= machine.devices; ++ranks) {
    if (machine.devices % ranks != 0) continue;
    Rates rates;
    rates.ranks = ranks;
    rates.threads = machine.devices / ranks;
    rates.memory_bandwidth = kMemoryBandwidth / ranks;
    rates.matmul_flop_rates = {{DType::kF32, kFlopsPerCore * rates.threads},
                               {DType::kBF16, kFlopsPerCore * rates.threads}};
    machine.rates.push_back(rates);
  }
  machine.intra_node_link = {kLatency, kBandwidth};
  return machine;
}

/// Returns the machine that the options name, otherwise this machine: with its measured rates if
/// there are any, else with the rates of a common server. The memory is the smallest limit that
/// applies.
InitMachine find_machine(const InitOptions& options) {
  if (!options.machine.empty()) {
    InitMachine named_machine{read_machine_file(options.machine), options.machine};
    if (named_machine.machine.memory_capacity == 0)
      throw Error(ExitCode::kUsage,
                  cat(options.machine,
                      ": the key memory is missing, so ftrun cannot tell which model fits"),
                  "add the memory of one device, for example memory: 80 GB");
    return named_machine;
  }
  const std::string own_path = own_machine_path();
  std::optional<Machine> measured = own_path.empty() ? std::nullopt : read_own_machine(own_path);
  if (!measured && count_visible_gpus(process_environment()) > 0)
    throw Error(
        ExitCode::kUsage, "the speed of this machine's GPUs is unknown",
        "name the machine, or a file that describes it: --machine h100-80gb (docs/plan.md)");
  InitMachine this_machine{
      measured ? *measured : assumed_cpu_machine(),
      measured ? own_path
               : "assumed, not measured; run ftrun bench machine --quick to measure "
                 "them"};
  if (!this_machine.machine.has_gpus && this_machine.machine.memory_capacity == 0)
    this_machine.machine.memory_capacity =
        static_cast<double>(read_memory_limit().total_bytes) / this_machine.machine.devices;
  return this_machine;
}

std::string base_name(const std::string& path) {
  std::string name = fs::path(path).lexically_normal().filename().string();
  if (name.empty()) name = fs::path(path).lexically_normal().parent_path().filename().string();
  const size_t at = name.find('@');
  return at == std::string::npos ? name : name.substr(0, at);
}

/// ConfigDraft makes the text of a config for one variant of training, without a layout.
class ConfigDraft {
 public:
  ConfigDraft(const InitOptions& options, const InitMachine& machine)
      : options_(options), machine_(machine.machine), data_(find_data_paths(options.data)) {
    sequence_length_ = machine_.has_gpus ? kMaxSequenceLengthOnGpus : kMaxSequenceLengthOnCpus;
    LoadedConfig loaded = load();
    const Config& config = loaded.config;
    conversations_ = loaded.context.conversations;
    if (loaded.model->max_positions > 0)
      sequence_length_ = std::min(sequence_length_, loaded.model->max_positions);
    fit_sequence_length(config);
    model_ = *loaded.model;
    // load_source() has replaced the names of data sets by their files.
    Config config_with_length = config;
    config_with_length.data.sequence_length = sequence_length_;
    sequences_ = SequenceSet(config.data.train, sequence_options(config_with_length)).size();
    epochs_ = conversations_ ? kEpochsOfConversations : kEpochs;
    choose_batch();
    // Loads again with all checks of model and data that a run makes.
    load(true);
  }

  std::string text(const TrainingVariant& variant) const {
    std::string text = cat("model: {path: ", yaml_text(options_.model), "}\n",
                           "data:\n  train: ", yaml_text(data_.train), "\n");
    if (!data_.validation.empty()) text += cat("  validation: ", yaml_text(data_.validation), "\n");
    text += cat("  sequence_length: ", sequence_length_, "\n", variant.sections,
                "train:\n  epochs: ", epochs_, "\n");
    if (!data_.validation.empty())
      text += cat("  evaluation: {every: ", std::max<int64_t>(1, steps() / 10), ", samples: 64}\n");
    text += cat("train_batch_size: ", batch_, "\ngradient_clipping: 1.0\n",
                "optimizer:\n  type: ", name_of(OptimizerConfig{}.type),
                "\n  params: {lr: ", yaml_text(variant.learning_rate),
                ", betas: [0.9, 0.95], weight_decay: 0.0}\n",
                "scheduler:\n  type: cosine\n  params: {warmup_num_steps: ", warmup(), "}\n",
                "output_dir: ",
                yaml_text(cat("runs/", base_name(options_.model), "-", base_name(options_.data))),
                "\n");
    if (machine_.has_gpus) text += "bf16: {enabled: true}\n";
    return text;
  }

  ConfigSource source(const TrainingVariant& variant) const {
    ConfigSource source;
    source.texts = {{"ftrun init", text(variant)}};
    return source;
  }

  const ModelConfig& model() const { return model_; }
  int64_t batch() const { return batch_; }
  int64_t sequence_length() const { return sequence_length_; }
  int64_t sequences() const { return sequences_; }
  int64_t epochs() const { return epochs_; }
  bool conversations() const { return conversations_; }
  int64_t steps() const {
    return std::max<int64_t>(1, divide_up(sequences_ * epochs_, batch_));
  }
  /// Returns the warm-up steps: a thirtieth of the run.
  int64_t warmup() const { return steps() / 30; }

 private:
  /// Loads the variant of training that needs the most memory.
  LoadedConfig load(bool reads_inputs = false) const {
    ConfigSource source = this->source(kVariants[0]);
    source.overrides = {machine_.has_gpus ? "device=cuda" : "device=cpu"};
    source.nproc = 1;
    source.reads_weights = source.reads_data = reads_inputs;
    return load_source(source, LaunchEnvironment{});
  }

  /// Sets the sequence length for conversations, which are not cut: doubles it until the longest
  /// conversation fits.
  void fit_sequence_length(const Config& config) {
    if (!conversations_) return;
    Config config_with_length = config;
    for (config_with_length.data.sequence_length = sequence_length_;
         !check_conversation_lengths(config.data.train, sequence_options(config_with_length))
              .empty() &&
         config_with_length.data.sequence_length < kLongestSequence;)
      config_with_length.data.sequence_length *= 2;
    sequence_length_ = config_with_length.data.sequence_length;
  }

  /// Chooses the batch: the number of devices times a power of two, the largest that gives at least
  /// kMinStepsPerRun steps and at most kMaxTokensPerStep tokens per step. If there are fewer
  /// sequences than devices, the batch is a power of two.
  void choose_batch() {
    const int64_t max_batch = std::min(sequences_ * epochs_ / kMinStepsPerRun,
                                       kMaxTokensPerStep / std::max<int64_t>(sequence_length_, 1));
    const int64_t devices = machine_.devices * options_.nodes;
    const int64_t shared = sequences_ < devices ? 1 : devices;
    const int64_t per_device = sequences_ < devices ? sequences_ : max_batch / devices;
    batch_ = shared * static_cast<int64_t>(
                          std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(1, per_device))));
  }

  static constexpr int64_t kLongestSequence = int64_t{1} << 17;

  const InitOptions& options_;
  const Machine& machine_;
  const DataPaths data_;
  ModelConfig model_;
  int64_t sequence_length_ = 0;
  int64_t sequences_ = 0;
  int64_t epochs_ = 1;
  int64_t batch_ = 1;
  bool conversations_ = false;
};

/// LayoutOfVariant is a variant of training with the result of the search for its layout.
struct LayoutOfVariant {
  const TrainingVariant* variant = nullptr;
  SearchTask task;
  SearchResult result;
};

/// Returns the reason why a variant was left out: "all weights would need at least 20.00 GiB per
/// rank".
std::string left_out_text(const LayoutOfVariant& candidate) {
  const PlannedLayout& smallest = *candidate.result.least_memory;
  return cat(candidate.variant->name, " would need at least ", rank_memory_text(smallest.memory),
             " per rank",
             candidate.result.is_proved ? "" : ", among the layouts that were checked");
}

std::vector<std::string> list_summary_lines(const ConfigDraft& draft, const InitMachine& machine,
                                            const LayoutOfVariant& chosen,
                                            const std::string& left_out, const std::string& out) {
  const PlannedLayout& best = chosen.result.ranking.front();
  const double step_seconds = best.time->seconds;
  const double run_seconds = step_seconds * static_cast<double>(draft.steps());
  return {
      cat("Data: ", count_text(draft.sequences(), "sequence"), " of ", draft.sequence_length(),
          " tokens", draft.conversations() ? ", conversations" : "", "; ",
          count_text(draft.steps(), "step"), ": ", count_text(draft.epochs(), "epoch"), " at ",
          count_text(draft.batch(), "sequence"), " per step."),
      cat("Trains ", chosen.variant->name, ": ",
          left_out.empty() ? "the whole model fits, and full training usually gives the lowest loss"
                           : left_out,
          "; learning rate ", number_text(chosen.variant->learning_rate), "."),
      cat("Layout on ", machine_text(chosen.task.machine, chosen.task.nodes), ": ",
          layout_text(best.layout), "; ",
          chosen.result.is_proved ? "no other layout is faster" : "the fastest of those checked",
          "."),
      cat("A rank needs ", rank_memory_text(best.memory), "; a step takes about ",
          format_number("%.3g", step_seconds), " s, the whole run ", human_seconds(run_seconds),
          " (rates: ", machine.source, ")."),
      cat("Check it with ftrun check --config ", out, ", train with ftrun --config ", out, ".")};
}

int init_command(const InitOptions& options) {
  check_new_file("--out", options.out);
  const InitMachine machine = find_machine(options);
  const ConfigDraft draft(options, machine);
  std::optional<LayoutOfVariant> chosen;
  std::vector<std::string> left_out;
  for (const TrainingVariant& variant : kVariants) {
    SearchOptions search;
    search.source = draft.source(variant);
    search.nodes = options.nodes;
    search.seconds = options.seconds;
    LayoutOfVariant candidate{&variant, make_search_task(search, machine.machine), {}};
    // A machine file may omit the size of the main memory next to GPUs; then nothing is offloaded.
    candidate.task.offloads = !machine.machine.has_gpus || machine.machine.host_memory_capacity > 0;
    const bool is_last = &variant == &kVariants.back();
    candidate.result = search_layouts(candidate.task, {options.seconds, is_last});
    if (is_last || (candidate.result.ranking.empty() && !candidate.result.least_memory))
      check_found_layout(candidate.task, candidate.result);
    if (!candidate.result.ranking.empty()) {
      chosen = std::move(candidate);
      break;
    }
    left_out.push_back(left_out_text(candidate));
  }
  const std::vector<std::string> lines =
      list_summary_lines(draft, machine, *chosen, join(left_out, ", "), shell_word(options.out));
  write_new_file(options.out,
                 config_with_layout(chosen->task, chosen->result.ranking.front().layout, lines));
  std::cout << "wrote " << terminal_text(options.out) << '\n';
  for (const std::string& line : lines) std::cout << terminal_text(line) << '\n';
  return 0;
}

}  // namespace

Command add_init(CLI::App& app) {
  auto options = std::make_shared<InitOptions>();
  CLI::App* command = app.add_subcommand(
      "init", "write a good config for a model and data, on this machine or another");
  command->add_option("model", options->model, "a model's folder, or its name on the Hub")
      ->required();
  command
      ->add_option("data", options->data,
                   "a folder with train and validation, a file, or a data set's name on the Hub")
      ->required();
  command
      ->add_option("--machine", options->machine,
                   "a machine that ftrun knows (h100-80gb, ...) or a machine file "
                   "(docs/plan.md), instead of this one")
      ->option_text("FILE");
  command->add_option("--out", options->out, "the new config (train.yaml)")->option_text("FILE");
  command->add_option("--seconds", options->seconds, "the time that a search may take")
      ->check(CLI::PositiveNumber);
  add_nodes_option(*command, options->nodes);
  return [options] { return init_command(*options); };
}

}  // namespace ftrun

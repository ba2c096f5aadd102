#include "exec/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/save.h"
#include "exec/generate.h"
#include "exec/optimizer_plan.h"
#include "exec/stop_signal.h"
#include "model/detokenizer.h"
#include "program/check.h"
#include "report/machine.h"
#include "report/table.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : request_(request), config_(request.config), session_(request), schedule_(request.config.scheduler) {}

int Trainer::run() {
  open_outputs();
  open_data();
  session_.together("model", [&] { setup_ = std::make_unique<TrainingSetup>(config_, session_.data()); });
  check_program();
  load_or_resume();
  start_loader();
  train_until_stopped();
  finish();
  const int code = signal_ == 0 ? 0 : stop_exit_code(signal_);
  session_.close();
  return code;
}

void Trainer::open_outputs() {
  session_.together("output folder", [&] {
    if (session_.is_first()) recorder_ = std::make_unique<Recorder>(request_, make_manifest(request_));
  });
  const RunPaths paths(config_.output_dir);
  log_start({.prefix = session_.world() > 1 ? cat("rank ", session_.rank()) : "", .file = paths.log(session_.rank())});
}

void Trainer::open_data() {
  session_.together("data", [&] {
    train_data_ = open_samples(config_.data, config_.data.train);
    if (!config_.data.validation.empty()) validation_data_ = open_samples(config_.data, config_.data.validation);
  });
  total_steps_ = config_.train.steps > 0
                     ? config_.train.steps
                     : train_data_->steps_for_epochs(config_.train.epochs, config_.train_batch_size);
  if (schedule_.total_num_steps == 0) schedule_.total_num_steps = total_steps_;
  if (session_.is_first())
    fingerprint_ = std::make_unique<FingerprintJob>(train_data_->data(), cat(config_.output_dir, "/data-fingerprint.json"));
}

/// The checker before step 1, and the same program on every rank before the first collective.
void Trainer::check_program() {
  for (const Program* program : {&setup_->train().program, &setup_->evaluate().program}) {
    const std::vector<const Program*> ranks(static_cast<size_t>(session_.world()), program);
    const std::vector<std::string> faults = check_programs(ranks);
    if (!faults.empty()) bug(cat("the step program is wrong: ", join(faults, "; ")));
    session_.require_equal(cat("program ", program->name), hex64(program_hash(*program)));
  }
}

void Trainer::load_or_resume() {
  const std::string root = RunPaths(config_.output_dir).checkpoints();
  const bool found = request_.resume.resume && !list_checkpoints(root).empty();
  if (session_.is_first()) clean_checkpoints(posix_files(), root);
  if (request_.resume.resume && (found || request_.resume.step))
    return resume(choose_checkpoint(root, request_.resume.step, session_.checkpoint_group()));
  session_.together("weights", [&] { setup_->state().load(setup_->folder()); });
}

void Trainer::resume(const std::string& folder) {
  session_.together("checkpoint", [&] {
    Checkpoint checkpoint(folder);
    setup_->state().load(checkpoint);
    const CheckpointMeta& meta = checkpoint.meta();
    step_ = meta.step;
    skipped_ = meta.skipped_steps;
    tokens_ = meta.tokens;
  });
  saved_step_ = step_;
  if (session_.is_first()) recorder_->say(cat("resumed from ", folder));
}

void Trainer::start_loader() {
  refuse_recorded_ids(train_data_->data(), setup_->train().model.vocab_rows);
  LoaderOptions options;
  options.shape = {config_.train_micro_batch_size_per_gpu, config_.gradient_accumulation_steps, session_.world(),
                   session_.rank()};
  options.vocab_rows = setup_->train().model.vocab_rows;
  options.shuffle = config_.data.shuffle;
  options.seed = static_cast<uint64_t>(config_.train.seed);
  options.first_step = step_;
  options.end_step = total_steps_;
  options.depth = static_cast<int>(config_.data.prefetch);
  loader_ = std::make_unique<Loader>(*train_data_, options);
  if (session_.is_first()) recorder_->start(step_ + 1, total_steps_);
}

void Trainer::train_until_stopped() {
  catch_stop_signals();
  if (step_ == 0 && validation_data_ && step_ < total_steps_) {
    StepMetrics before;
    before.trained = false;
    validate(before);
    if (recorder_) recorder_->record(before);
  }
  while (step_ < total_steps_ && signal_ == 0) {
    StepMetrics metrics = train_step();
    if (validation_due()) validate(metrics);
    if (recorder_) recorder_->record(metrics);
    record_fingerprints();
    const bool due = config_.checkpoint.every > 0 && step_ % config_.checkpoint.every == 0;
    if (due || signal_ != 0) save_checkpoint();
  }
}

StepMetrics Trainer::train_step() {
  const auto start = Clock::now();
  const Loader::Fetched fetched = loader_->next();
  if (step_ == 0 && recorder_)
    recorder_->update([](RunManifest& manifest) {
      manifest.counters["ready_milliseconds"] = static_cast<int64_t>(read_process_times().age_seconds * 1e3);
    });
  StepRun step;
  step.micro_batches = fetched.batch.micro_batches;
  step.scalars = step_scalars_of(config_.optimizer, schedule_, step_ - skipped_ + 1);
  const auto counted = static_cast<double>(fetched.batch.counted_tokens_global);
  step.scalars.loss_scale = counted > 0 ? static_cast<float>(1.0 / counted) : 0.0F;
  step.clip_norm = config_.gradient_clipping;
  step.optimizer = optimizer_options(config_.optimizer);
  step.stop_votes = stop_vote(stop_signal());
  if (auto* sgd = std::get_if<SgdOptions>(&step.optimizer)) sgd->first_step = step_ == skipped_;
  setup_->trainer().run(step);

  StepMetrics metrics;
  metrics.step = ++step_;
  metrics.data_wait_seconds = fetched.wait_seconds;
  metrics.learning_rate = step.scalars.learning_rate;
  metrics.step_seconds = seconds_since(start);
  account(step, metrics);
  return metrics;
}

void Trainer::account(StepRun& step, StepMetrics& metrics) {
  metrics.samples = step_ * config_.train_batch_size;
  metrics.tokens = static_cast<int64_t>(step.counted_tokens);
  metrics.loss = step.counted_tokens > 0 ? step.loss_sum / step.counted_tokens : 0.0;
  metrics.grad_norm = step.gradient_norm;
  metrics.tokens_per_second = step.counted_tokens / metrics.step_seconds;
  metrics.exposed_communication_seconds = step.exposed_communication_seconds;
  metrics.skipped = !step.finite;
  for (const auto& [category, bytes] : setup_->memory().allocated()) metrics.memory.push_back({category, bytes});
  const CommStats::Entry total = session_.data().stats().total();
  metrics.counters.push_back({"bytes_sent", total.bytes_sent});
  tokens_ += metrics.tokens;
  signal_ = voted_signal(step.stop_votes);
  count_skipped(step.finite);
}

/// Every rank counts the same, because every rank sees the same reduced loss and gradient.
void Trainer::count_skipped(bool finite) {
  if (finite) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++skipped_;
  ++skipped_in_a_row_;
  if (recorder_) {
    log_warning(cat("step ", step_, ": loss or gradient is not finite; the update was left out (",
                    skipped_in_a_row_, " in a row)"));
    recorder_->update([&](RunManifest& manifest) { manifest.counters["skipped_steps"] = skipped_; });
  }
  if (skipped_in_a_row_ >= config_.train.max_nonfinite_steps)
    throw Error(ExitCode::kNumerical,
                cat("step ", step_, ": loss or gradient was not finite for ", skipped_in_a_row_, " steps in a row"),
                "lower the learning rate, check the data of these steps, or raise train.max_nonfinite_steps");
}

bool Trainer::validation_due() const {
  if (!validation_data_) return false;
  const int64_t every = config_.train.evaluation.every;
  return step_ == total_steps_ || (every > 0 && step_ % every == 0);
}

void Trainer::validate(StepMetrics& metrics) {
  const auto start = Clock::now();
  metrics.validation_loss = validation_loss();
  metrics.validation_seconds = seconds_since(start);
}

double Trainer::validation_loss() {
  ValidationReader reader(*validation_data_, config_.train.evaluation.samples,
                          config_.train_micro_batch_size_per_gpu, session_.world(), session_.rank(),
                          setup_->evaluate().model.vocab_rows);
  double loss = 0;
  double counted = 0;
  for (int64_t round = 0; round < reader.rounds(); ++round) {
    StepRun step;
    step.micro_batches = {&reader.read(round), 1};
    setup_->evaluator().run(step);
    loss += step.loss_sum;
    counted += step.counted_tokens;
  }
  return loss / counted;
}

void Trainer::record_fingerprints() {
  if (!fingerprint_ || fingerprint_recorded_) return;
  const std::optional<DataFingerprint> found = fingerprint_->result();
  if (!found) return;
  fingerprint_recorded_ = true;
  recorder_->update([&](RunManifest& manifest) {
    InputRecord& record = manifest.data["train"];
    record.path = train_data_->data().name();
    record.fingerprint = found->digest;
    manifest.model.fingerprint = setup_->folder().fingerprint();
  });
}

CheckpointMeta Trainer::checkpoint_meta() {
  CheckpointMeta meta;
  meta.ftrun_version = request_.build.version;
  meta.step = step_;
  meta.skipped_steps = skipped_;
  meta.samples = step_ * config_.train_batch_size;
  meta.tokens = tokens_;
  meta.seed = static_cast<uint64_t>(config_.train.seed);
  meta.scheduler["last_batch_iteration"] = static_cast<double>(step_ - skipped_ - 1);
  meta.model_fingerprint = setup_->folder().fingerprint();
  meta.config_hash = hex64(xxh3(request_.config_json.data(), request_.config_json.size()));
  meta.topology = {{"world_size", session_.world()}, {"data", session_.world()}};
  return meta;
}

void Trainer::save_checkpoint() {
  if (saved_step_ == step_) return;
  const RunPaths paths(config_.output_dir);
  SaveOptions options{paths.checkpoints(), config_.checkpoint.keep_last};
  const SaveResult result =
      ftrun::save_checkpoint(posix_files(), options, checkpoint_meta(),
                             setup_->state().slices(session_.rank(), session_.world()), session_.checkpoint_group());
  saved_step_ = step_;
  if (recorder_) recorder_->say(cat("saved ", result.folder, " (", human_bytes(result.bytes), ")"));
}

void Trainer::finish() {
  loader_->shutdown();
  if (signal_ == 0) {
    save_checkpoint();
    export_model_folder();
    show_sample();
  }
  report_memory();
  if (!recorder_) return;
  const int code = signal_ == 0 ? 0 : stop_exit_code(signal_);
  const std::string reason = signal_ == 0 ? "done" : cat("stopped by signal ", signal_, " after step ", step_);
  const std::string table = recorder_->finish(code, reason);
  std::cout << '\n' << table << std::flush;
  if (signal_ != 0) log_notice(cat(reason, "; continue with --resume auto"));
}

void Trainer::export_model_folder() {
  if (!config_.model_export.enabled) return;
  session_.together("export", [&] {
    if (!session_.is_first()) return;
    ExportOptions options;
    options.folder = cat(RunPaths(config_.output_dir).exported(), "/model");
    options.source_folder = setup_->folder().path();
    options.config_json = setup_->folder().config_json();
    const bool half = config_.model_export.dtype == ExportDtype::kBf16 ||
                      (config_.model_export.dtype == ExportDtype::kAuto &&
                       setup_->model_config().dtype == DType::kBF16);
    options.dtype = half ? DType::kBF16 : DType::kF32;
    std::vector<ExportTensor> tensors;
    for (const TensorInfo& tensor : setup_->train().model.tensors) tensors.push_back({tensor.name, tensor.shape});
    export_model(posix_files(), options, tensors, [&](const ExportPiece& piece, std::span<float> out) {
      setup_->state().read(piece.tensor, piece.begin, piece.end, out);
    });
    recorder_->say(cat("exported ", options.folder));
  });
}

/// Every rank computes the same text (the logits program has no collective); the first one shows it.
void Trainer::show_sample() {
  if (config_.train.generate.prompt_tokens == 0 || !validation_data_ || !session_.is_first()) return;
  TrainingSetup::Writer& writer = setup_->writer();
  const ModelDescription& model = writer.plan.model;
  RowReader reader(*validation_data_, model.vocab_rows);
  Batch batch;
  reader.start(batch, 1);
  reader.fill(batch, 0, 0);
  const auto prompt_size = static_cast<size_t>(std::min(config_.train.generate.prompt_tokens, model.batch.row_tokens));
  const std::vector<int32_t> prompt(batch.tokens.begin(), batch.tokens.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  GenerateOptions options{config_.train.generate.tokens, config_.train.generate.temperature,
                          static_cast<uint64_t>(config_.train.seed), setup_->model_config().eos_ids};
  const std::vector<int32_t> text = generate(*writer.executor, model, setup_->memory(), prompt, options);
  const std::string tokenizer = setup_->folder().path() + "/tokenizer.json";
  if (!posix_files().exists(tokenizer)) return;
  const Detokenizer words = Detokenizer::parse(read_file(tokenizer), tokenizer);
  recorder_->say(cat("\nsample (the validation text's first ", prompt_size, " tokens, continued by the model):\n",
                     words.decode(prompt), " >>>", words.decode(text), "\n"));
}

/// What was planned beside what was allocated; the process's own figures below.
void Trainer::report_memory() {
  if (!recorder_) return;
  std::map<std::string, int64_t> planned;
  for (const auto& [category, bytes] : memory_account(setup_->train().program).by_category)
    planned[std::string(category_name(category))] = bytes;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [category, bytes] : setup_->memory().allocated())
    rows.push_back({category, human_bytes(planned[category]), human_bytes(bytes)});
  const ProcessMemory process = read_process_memory();
  recorder_->say("\nmemory of rank 0\n" + format_table({"category", "training program", "allocated"}, rows) +
                 cat("process: ", human_bytes(process.anonymous + process.shared_memory),
                     " anonymous and shared now, ", human_bytes(process.peak_resident),
                     " resident at most (with mapped files)"));
}

int train(const TrainRequest& request) { return Trainer(request).run(); }

}  // namespace ftrun

#include "exec/choose_gpu.h"
#include "exec/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/as_error.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/save.h"
#include "cluster/failure_report.h"
#include "comm/progress.h"
#include "exec/check_ranks.h"
#include "exec/decide_step.h"
#include "exec/describe_step.h"
#include "exec/export_options.h"
#include "exec/gradient_scale.h"
#include "exec/optimizer_plan.h"
#include "exec/results.h"
#include "exec/resume_policy.h"
#include "exec/sample_options.h"
#include "exec/stop_signal.h"
#include "program/plan_notes.h"
#include "report/environment.h"
#include "report/machine.h"
#include "report/resume_check.h"

namespace ftrun {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "notice") return LogLevel::kNotice;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  return name == "error" || name == "critical" ? LogLevel::kError : LogLevel::kInfo;
}

/// What training needs memory for is the config's choice.
Error training_error(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) == nullptr) return as_error(exception);
  return {ExitCode::kEnvironment, "out of memory",
          "use a smaller micro-batch or sequence, or a machine with more memory"};
}

/// "validation on 64 of 812 sequences (train.evaluation.samples)".
std::string validation_text(const EvaluationConfig& evaluation, const SampleSet& data) {
  const int64_t used = evaluation.samples == 0 ? data.size() : std::min(evaluation.samples, data.size());
  return cat("validation on ", used == data.size() ? cat("all ", used) : cat(used, " of ", data.size()),
             " sequences (train.evaluation.samples)");
}

/// "CUDA 13.0": what the driver can do.
std::string driver_text(const DeviceInfo& gpu) {
  return cat("CUDA ", gpu.driver_version / 1000, ".", gpu.driver_version % 1000 / 10);
}

}  // namespace

Trainer::Trainer(const TrainRequest& request)
    : request_(request),
      config_(request.config),
      session_(request),
      schedule_(request.config.scheduler),
      skipped_(request.config) {}

int Trainer::run() {
  try {
    return train();
  } catch (const std::exception& exception) {
    const Error error = training_error(exception);
    // Before anything is torn down, which may outlast the supervisor's patience with this rank.
    report_failure({.rank = session_.rank(),
                    .unix_ns = unix_time_ns(),
                    .exit_code = static_cast<int>(error.code()),
                    .message = error.what()});
    if (recorder_) recorder_->fail(static_cast<int>(error.code()), error.message());
    log_debug(cat("error: ", error.what()));
    session_.leave();
    // A transport's threads may still write to what a collective that was given up would have
    // filled: its memory stays until the process ends.
    [[maybe_unused]] static TrainingSetup* kept = nullptr;
    kept = setup_.release();
    throw error;
  }
}

int Trainer::train() {
  prepare_process();
  take_folder();
  open_data();
  open_model();
  check_programs_of_ranks(config_, *setup_, session_);
  load_or_resume();
  open_outputs();
  start_loader();
  train_until_stopped();
  finish();
  session_.close();
  ignore_stop_signals();
  return exit_code();
}

void Trainer::prepare_process() {
  const int local = session_.local_ranks();
  const auto asked = static_cast<int>(config_.threads);
  set_kernel_threads(asked > 0 ? asked : std::max(1, read_machine().cores / local));
  if (session_.gpu() != nullptr) return;
  session_.together("choosing the library of matrix products",
                    [&] { products_ = use_products(pinned_products(config_.kernels)); });
}

void Trainer::take_folder() {
  session_.together("taking the run folder", [&] {
    if (session_.is_first()) recorder_ = std::make_unique<Recorder>(request_);
  });
}

void Trainer::open_data() {
  session_.together("opening the data", [&] {
    train_data_ = open_samples(config_.data, config_.data.train);
    if (!config_.data.validation.empty())
      validation_data_ = open_samples(config_.data, config_.data.validation);
  });
  total_steps_ = config_.train.steps > 0
                     ? config_.train.steps
                     : train_data_->steps_for_epochs(config_.train.epochs, config_.train_batch_size,
                                                     config_.data.drop_last);
  if (schedule_.total_num_steps == 0) schedule_.total_num_steps = total_steps_;
  session_.require_equal(
      "the data", cat(train_data_->size(), " ", validation_data_ ? validation_data_->size() : 0));
}

void Trainer::open_model() {
  std::optional<PlannedModel> model;
  session_.together("opening the model", [&] {
    model.emplace(config_, session_.rank());
    for (const auto* samples : {&train_data_, &validation_data_})
      if (*samples) refuse_recorded_ids((*samples)->data(), model->plan.train.model.vocab_rows);
  });
  session_.open_groups(config_, model->plan.options.state);
  session_.together("allocating memory", [&] {
    setup_ = std::make_unique<TrainingSetup>(config_, std::move(*model), session_.groups(), run_name(),
                                             session_.gpu());
  });
}

/// Names this run's swap files.
std::string Trainer::run_name() const {
  const std::string key = cat(config_.output_dir, "\n", request_.launch.master_port, "\n", ::getppid());
  return hex64(xxh3(key.data(), key.size()));
}

RunManifest Trainer::describe_run() {
  RunManifest manifest = make_manifest(request_);
  manifest.gpus = session_.gpu_names();
  if (const Gpu* gpu = session_.gpu()) manifest.gpu_driver = driver_text(gpu->info());
  if (products_) manifest.products = {{"fp32", products_->fp32}, {"bf16", products_->bf16}};
  manifest.model = describe_model(setup_->folder(), setup_->train().model);
  manifest.data["train"] = describe_data(*train_data_);
  if (validation_data_) manifest.data["validation"] = describe_data(*validation_data_);
  return manifest;
}

void Trainer::load_or_resume() {
  const std::string root = RunPaths(config_.output_dir).checkpoints();
  // Rank 0 alone looks: it also cleans up what a killed run left.
  const bool found = session_.first_decides("resuming", [&] {
    clean_checkpoints(posix_files(), root);
    if (config_.model_export.enabled) recover_export(posix_files(), export_folder(config_));
    if (!request_.resume.resume || (!request_.resume.step && list_checkpoints(root).empty()))
      return false;
    recorder_->admit(describe_run());
    return true;
  });
  if (found)
    return resume(choose_checkpoint(root, request_.resume.step, session_.checkpoint_group()));
  if (recorder_) recorder_->note_new_start();
  session_.together("reading the weights", [&] { setup_->state().load(setup_->folder()); });
}

void Trainer::resume(const std::string& folder) {
  session_.together("reading the checkpoint", [&] {
    Checkpoint checkpoint(folder);
    const CheckpointMeta& meta = checkpoint.meta();
    if (recorder_) recorder_->admit(folder, meta, describe_run());
    setup_->state().load(checkpoint);
    saved_data_fingerprint_ = meta.data_fingerprint;
    step_ = meta.step;
    tokens_ = meta.tokens;
    skipped_.restore(meta.skipped_steps, meta.loss_scaler);
  });
  saved_step_ = step_;
  resumed_ = true;
  resumed_from_ = folder;
  if (!recorder_) return;
  recorder_->say(cat("resumed from ", folder));
  if (step_ >= total_steps_)
    recorder_->say(cat("nothing is left to train: step ", step_, " of ", total_steps_));
}

void Trainer::open_outputs() {
  const RunPaths paths(config_.output_dir);
  const bool prefixed = session_.world() > 1 && request_.launch.kind != LaunchKind::kSupervised;
  session_.together("writing the run folder", [&] {
    if (recorder_) recorder_->start(describe_run(), step_ == 0 ? 0 : step_ + 1, total_steps_);
    log_start({.level = log_level(config_.log_level),
               .prefix = prefixed ? cat("rank ", session_.rank()) : "",
               .file = paths.log(session_.rank())});
  });
  log_debug(cat("rank ", session_.rank(), " of ", session_.world(), ", ftrun ",
                request_.build.version, ", from step ", step_ + 1, " to ", total_steps_));
  if (!recorder_) return;
  say_device();
  if (products_ && !products_->missing.empty())
    recorder_->say(cat("matrix products: ", products_->fp32, ", as ", products_->missing,
                       ", which is faster on this processor, cannot be loaded; scripts/setup.sh "
                       "installs it"));
  for (const std::string& note : plan_notes(config_, setup_->plan())) recorder_->say(note);
  if (validation_data_) recorder_->say(validation_text(config_.train.evaluation, *validation_data_));
  fingerprints_.start("train", *train_data_, paths.fingerprint("train"));
  if (validation_data_)
    fingerprints_.start("validation", *validation_data_, paths.fingerprint("validation"));
}

void Trainer::say_device() {
  const Gpu* gpu = session_.gpu();
  if (gpu == nullptr) {
    if (config_.device == DeviceKind::kAuto && may_have_gpu())
      recorder_->say("on the processor: a GPU is used where \"device\": \"cuda\" asks for it");
    return;
  }
  recorder_->say(cat("on ", gpu->info().name, " (", driver_text(gpu->info()), ")"));
  if (!gpu->options().pin_memory)
    recorder_->say("host memory is pageable, as pin_memory: false asks: copies to and from the GPU hold up "
                   "their lane");
}

void Trainer::start_loader() {
  LoaderOptions options;
  const StateOptions& place = setup_->plan().options.state;
  options.shape = {config_.train_micro_batch_size_per_gpu, config_.gradient_accumulation_steps,
                   data_ranks(place), data_index(place)};
  options.vocab_rows = setup_->train().model.vocab_rows;
  options.shuffle = config_.data.shuffle;
  options.drop_last = config_.data.drop_last;
  options.seed = static_cast<uint64_t>(config_.train.seed);
  options.first_step = step_;
  options.end_step = std::max(step_, total_steps_);
  options.depth = static_cast<int>(config_.data.prefetch);
  loader_ = std::make_unique<Loader>(*train_data_, options);
}

void Trainer::train_until_stopped() {
  traffic_.emplace(*setup_);
  catch_stop_signals();
  if (step_ == 0 && validation_data_ && step_ < total_steps_) {
    StepMetrics before;
    before.trained = false;
    if (validate(before) && recorder_) recorder_->record(before);
  }
  if (resumed_ && last_validation_missing()) {
    StepMetrics late;
    late.step = step_;
    late.trained = false;
    if (validate(late) && recorder_) recorder_->record(late);
  }
  while (step_ < total_steps_ && signal_ == 0) {
    StepMetrics metrics = train_step();
    // Between a signal and the kill that may follow it there is time to save, not to validate.
    if (signal_ == 0 && validation_due()) validate(metrics);
    if (recorder_) recorder_->record(metrics);
    skipped_.refuse_too_many(step_);
    record_fingerprints();
    const bool due = config_.checkpoint.every > 0 && step_ % config_.checkpoint.every == 0;
    if (due || signal_ != 0) save_checkpoint();
    // Saving takes its time: whoever asks to stop meanwhile need not wait for a step and its save.
    if (due && signal_ == 0 && step_ < total_steps_) signal_ = session_.vote_to_stop(stop_signal());
  }
}

StepRun Trainer::prepare(const StepBatch& batch) {
  StepRun step;
  step.micro_batches = batch.micro_batches;
  const int64_t updates = step_ - skipped_.total();
  step.scalars = step_scalars_of(config_.optimizer, schedule_, updates + 1);
  const GradientScale scale = gradient_scale(config_, skipped_.loss_scale(),
                                             static_cast<double>(batch.counted_tokens_global));
  step.scalars.loss_scale = scale.loss_scale;
  step.scalars.rounding_key = rounding_key(static_cast<uint64_t>(config_.train.seed), step_ + 1);
  step.decide = step_policy({.gradient_multiple = scale.multiple, .clip_norm = config_.gradient_clipping});
  step.optimizer = optimizer_options(config_.optimizer);
  step.caller_value = stop_vote(stop_signal());
  if (auto* sgd = std::get_if<SgdOptions>(&step.optimizer)) sgd->first_step = updates == 0;
  return step;
}

StepMetrics Trainer::train_step() {
  const auto start = Clock::now();
  const Loader::Fetched fetched = loader_->next();
  note_ready();
  StepRun step = prepare(fetched.batch);
  peak_.begin();
  traffic_->begin();
  setup_->trainer().run(step);
  traffic_->end(step.finite);
  peak_.end();

  StepMetrics metrics;
  if (config_.fp16.enabled) metrics.loss_scale = skipped_.loss_scale();
  metrics.step = ++step_;
  metrics.data_wait_seconds = fetched.wait_seconds;
  metrics.learning_rate = step.scalars.learning_rate;
  metrics.step_seconds = seconds_since(start);
  account(step, metrics);
  show_step(step, metrics);
  count_skipped(step);
  return metrics;
}

/// How long it took from the start of the process to the first forward pass.
void Trainer::note_ready() {
  if (std::exchange(ready_, true) || !recorder_) return;
  const auto milliseconds = static_cast<int64_t>(read_process_times().age_seconds * 1e3);
  recorder_->update(
      [&](RunManifest& manifest) { manifest.counters["ready_milliseconds"] = milliseconds; });
}

void Trainer::account(StepRun& step, StepMetrics& metrics) {
  metrics.samples = step_ * config_.train_batch_size;
  metrics.tokens = static_cast<int64_t>(step.counted_tokens);
  metrics.loss = step.counted_tokens > 0 ? step.loss_sum / step.counted_tokens : 0.0;
  metrics.grad_norm = step.gradient_norm;
  metrics.tokens_per_second = step.counted_tokens / metrics.step_seconds;
  metrics.exposed_communication_seconds = step.exposed_communication_seconds;
  metrics.skipped = !step.finite;
  metrics.memory = memory_metrics(setup_->memory());
  metrics.counters.push_back({"bytes_sent", bytes_sent()});
  const TrafficSums& traffic = traffic_->sums();
  if (traffic.transported) metrics.counters.push_back({"bytes_transported", *traffic.transported});
  if (setup_->memory().swap() != nullptr) {
    metrics.counters.push_back({"disk_bytes_read", traffic.disk.read});
    metrics.counters.push_back({"disk_bytes_written", traffic.disk.written});
  }
  tokens_ += metrics.tokens;
  signal_ = voted_signal(step.caller_sum);
}

/// By all groups of this rank.
int64_t Trainer::bytes_sent() {
  int64_t bytes = 0;
  for (const Communicator* group : session_.groups().distinct())
    bytes += group->stats().total().bytes_sent;
  return bytes;
}

void Trainer::show_step(const StepRun& step, const StepMetrics& metrics) {
  log_debug(plain_step_text(metrics));
  if (!recorder_) return;
  const int64_t every = config_.steps_per_print;
  if (every > 0 && step_ % every == 0)
    recorder_->say(deepspeed_step_text(step_, skipped_.total(), step, config_.optimizer));
  if (!config_.wall_clock_breakdown) return;
  recorder_->say(breakdown_text(setup_->trainer().seconds()));
  if (const auto& times = setup_->trainer().device_times(); times && times->copies > 0)
    recorder_->say(overlap_text(*times));
}

/// Collective.
NonfiniteSearch Trainer::find_nonfinite(StepRun step) {
  const NonfinitePlace own = setup_->trainer().find_nonfinite(step);
  const int data = data_index(setup_->plan().options.state);
  const std::vector<std::string> all =
      session_.exchange("nonfinite", nonfinite_words({own.instr, data, own.text}));
  return {nonfinite_places(all), step.finite};
}

void Trainer::count_skipped(const StepRun& step) {
  std::optional<NonfiniteSearch> search;
  if (!step.finite && skipped_.wants_place()) search = find_nonfinite(step);
  const std::string warning = skipped_.count(step_, step.finite, search);
  if (warning.empty() || !recorder_) return;
  recorder_->warn(warning);
  recorder_->update([&](RunManifest& manifest) { manifest.counters["skipped_steps"] = skipped_.total(); });
}

bool Trainer::validation_due() const {
  if (!validation_data_) return false;
  const int64_t every = config_.train.evaluation.every;
  return step_ == total_steps_ || (every > 0 && step_ % every == 0);
}

/// Collective: whether all steps are done, and a signal came before the validation after the last one.
bool Trainer::last_validation_missing() {
  if (step_ != total_steps_ || !validation_data_) return false;
  return session_.first_decides("reading the metrics", [&] {
    const std::string path = recorder_->paths().metrics();
    if (!posix_files().exists(path)) return true;
    const std::vector<StepMetrics> all = read_metrics(path);
    return std::none_of(all.begin(), all.end(), [&](const StepMetrics& metrics) {
      return metrics.step == step_ && metrics.validation_loss.has_value();
    });
  });
}

/// False when a signal ended it.
bool Trainer::validate(StepMetrics& metrics) {
  const auto start = Clock::now();
  const std::optional<double> loss = validation_loss();
  if (!loss) {
    if (recorder_) recorder_->say(cat("validation after step ", step_, " stopped by ", signal_name(signal_)));
    return false;
  }
  metrics.validation_loss = *loss;
  metrics.validation_seconds = seconds_since(start);
  return true;
}

/// The ranks vote on stopping with each round's loss, as they do with a step's.
std::optional<double> Trainer::validation_loss() {
  const StateOptions& place = setup_->plan().options.state;
  ValidationReader reader(*validation_data_, config_.train.evaluation.samples,
                          config_.train_micro_batch_size_per_gpu, data_ranks(place), data_index(place),
                          setup_->evaluate().model.vocab_rows);
  if (reader.counted_tokens_global() == 0)
    throw Error(ExitCode::kBadInput,
                cat(validation_data_->data().name(), ": no token counts in the first ",
                    reader.sequences(), " sequences, so they have no loss"),
                "raise train.evaluation.samples, or validate on other data");
  double loss = 0;
  for (int64_t round = 0; round < reader.rounds(); ++round) {
    StepRun step;
    step.micro_batches = {&reader.read(round), 1};
    step.caller_value = stop_vote(stop_signal());
    setup_->evaluator().run(step);
    loss += step.loss_sum;
    signal_ = voted_signal(step.caller_sum);
    if (signal_ != 0 && round + 1 < reader.rounds()) return std::nullopt;
  }
  return loss / static_cast<double>(reader.counted_tokens_global());
}

void Trainer::record_fingerprints() {
  for (const auto& [role, digest] : fingerprints_.take()) note_fingerprint(role, digest);
}

/// Rank 0: takes what becomes known for a moment at most. True when all is.
bool Trainer::await_fingerprints_briefly() {
  for (const auto end = Clock::now() + std::chrono::milliseconds(100);;) {
    record_fingerprints();
    if (fingerprints_.all_taken()) return true;
    if (Clock::now() >= end || stop_signal() != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Collective: until the fingerprints are known, a signal comes or it has taken too long.
void Trainer::await_fingerprints() {
  constexpr int64_t kToldSeconds = 1;
  constexpr int64_t kLongestSeconds = 60;
  const auto start = Clock::now();
  bool told = false;
  const auto go_on = [&] {
    if (await_fingerprints_briefly()) return false;
    const double seconds = seconds_since(start);
    if (seconds >= kToldSeconds && !std::exchange(told, true))
      recorder_->say(cat("reading the rest of the data for its fingerprint, for ", kLongestSeconds, " s at most"));
    return seconds < kLongestSeconds;
  };
  while (signal_ == 0 && session_.first_decides("reading the data", go_on))
    signal_ = session_.vote_to_stop(stop_signal());
  if (recorder_ && train_fingerprint_.empty() && saved_step_ != step_)
    recorder_->say("the last checkpoint does not record the data's fingerprint: not all of the data has been read");
}

/// The content of the data is known only now: a resumed run may turn out to be another one.
void Trainer::note_fingerprint(const std::string& role, const std::string& digest) {
  if (role == "train") train_fingerprint_ = digest;
  recorder_->update([&](RunManifest& manifest) { manifest.data[role].fingerprint = digest; });
  if (!resumed_ || role != "train") return;
  if (recorder_->before())
    if (const auto earlier = recorder_->before()->data.find(role); earlier != recorder_->before()->data.end())
      refuse_other_data(recorder_->paths().manifest(), earlier->second.fingerprint, digest);
  refuse_other_data(resumed_from_ + "/checkpoint.json", saved_data_fingerprint_, digest);
}

void Trainer::refuse_other_data(const std::string& path, const std::string& before,
                                const std::string& now) const {
  if (before.empty() || before == now) return;
  refuse_other_run(path, {{"data.train.fingerprint", before, now}}, request_.resume.allowed);
}

CheckpointMeta Trainer::checkpoint_meta() {
  CheckpointMeta meta;
  meta.ftrun_version = request_.build.version;
  meta.step = step_;
  meta.skipped_steps = skipped_.total();
  meta.samples = step_ * config_.train_batch_size;
  meta.tokens = tokens_;
  meta.seed = static_cast<uint64_t>(config_.train.seed);
  meta.scheduler["last_batch_iteration"] = static_cast<double>(step_ - skipped_.total() - 1);
  meta.data_fingerprint = train_fingerprint_;
  meta.model_fingerprint = setup_->folder().fingerprint();
  meta.config_hash = hex64(xxh3(request_.config_json.data(), request_.config_json.size()));
  meta.extra[kConfigRecord] = without_secrets(request_.config_json);
  meta.loss_scaler = skipped_.scaler_state();
  const StateOptions& state = setup_->plan().options.state;
  meta.topology = {{"world_size", session_.world()},
                   {"data", data_ranks(state)},
                   {"data_replicate", state.replicas},
                   {"tensor", state.tensor.count},
                   {"zero_stage", config_.zero.stage}};
  return meta;
}

void Trainer::save_checkpoint() {
  if (saved_step_ == step_) return;
  const RunPaths paths(config_.output_dir);
  SaveOptions options{paths.checkpoints(), config_.checkpoint.keep_last};
  const SaveResult result = ftrun::save_checkpoint(
      posix_files(), options, checkpoint_meta(),
      setup_->state().slices(), session_.checkpoint_group());
  saved_step_ = step_;
  if (!recorder_) return;
  recorder_->say(cat("saved ", result.folder, " (", human_bytes(result.bytes),
                     result.read_from_disk ? "" : ", verified in memory: this file system reads nothing back from a disk",
                     ")"));
}

void Trainer::finish() {
  loader_->shutdown();
  note_memory();
  note_traffic();
  session_.allow_for_work_of_one();
  save_last_checkpoint();
  if (signal_ == 0 && config_.model_export.enabled) export_model();
  if (signal_ == 0 && validation_data_) sample_ = write_sample();
  session_.together("finishing the run", [&] {
    if (recorder_) conclude();
  });
}

/// Collective: the last checkpoint tells what data it was trained on, however short the run was. A run
/// that was stopped before has saved what there is.
void Trainer::save_last_checkpoint() {
  if (signal_ != 0) return;
  await_fingerprints();
  save_checkpoint();
  if (signal_ == 0 && config_.model_export.enabled) signal_ = session_.vote_to_stop(stop_signal());
}

/// Collective: rank 0 writes and the others help, which also learn of its failure. What fails where they
/// work together ends a rank's process at once, so that no other waits for it.
void Trainer::export_model() {
  const ExportOutcome outcome = export_weights(config_, *setup_, session_.is_first(), [this] {
    signal_ = session_.vote_to_stop(stop_signal());
    return signal_ != 0;
  });
  session_.together("exporting the model", [&] {
    if (outcome.failure) std::rethrow_exception(outcome.failure);
    if (session_.is_first() && !outcome.stopped) recorder_->say(cat("exported ", export_folder(config_)));
  });
}

/// Collective. A run that cannot write a text has still trained: rank 0 says why.
std::string Trainer::write_sample() {
  try {
    return written_sample();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kPeerLost || error.code() == ExitCode::kBug) throw;
    if (recorder_) recorder_->warn(cat("no sample of text: ", error.message()));
    return "";
  }
}

/// Rank 0 alone computes it unless it cannot; no rank may then fail alone.
std::string Trainer::written_sample() {
  std::optional<Detokenizer> words;
  const bool wanted = session_.first_decides("reading the tokenizer", [&] {
    words = read_words(config_, *setup_);
    return words.has_value();
  });
  if (!wanted || (!recorder_ && !setup_->needs_all_ranks())) return "";
  std::vector<int32_t> prompt;
  const auto prepare = [&] { prompt = sample_prompt(config_, *setup_, *validation_data_); };
  if (setup_->needs_all_ranks())
    session_.together("preparing the sample of text", prepare);
  else
    prepare();
  const std::string text = sample_text(config_, *setup_, prompt, words ? &*words : nullptr,
                                       [this] { return stops_sample(); });
  if (sample_signal_ == 0) return text;
  if (recorder_) recorder_->say(cat("no sample of text: ", signal_name(sample_signal_), " ended it"));
  return "";
}

/// All else is done then: the run has come to its end, whatever asks it to stop.
bool Trainer::stops_sample() {
  sample_signal_ = setup_->needs_all_ranks() ? session_.vote_to_stop(stop_signal()) : stop_signal();
  return sample_signal_ != 0;
}

/// Collective: run.json holds the figures of the rank that needed most. Called before the last
/// checkpoint and the export, which map whole files for a moment.
void Trainer::note_memory() {
  const ProcessMemory own = read_process_memory();
  memory_ = report_memory(*setup_, std::max(peak_.held(), own.held()));
  std::array<int64_t, 3> most{};
  for (const std::string& text : session_.exchange(
           "memory", cat(own.peak_resident, " ", own.held(), " ", own.file_backed))) {
    std::istringstream figures(text);
    for (int64_t& largest : most) {
      int64_t bytes = 0;
      figures >> bytes;
      largest = std::max(largest, bytes);
    }
  }
  if (!recorder_) return;
  recorder_->update([&](RunManifest& manifest) {
    manifest.counters["peak_resident_bytes"] = most[0];
    manifest.counters["anonymous_and_shared_bytes"] = most[1];
    manifest.counters["file_backed_bytes"] = most[2];
    manifest.memory = memory_record(*memory_);
  });
}

/// Collective: sums over all ranks.
void Trainer::note_traffic() {
  if (traffic_->sums().steps == 0) return;
  bool first = true;
  for (const std::string& text : session_.exchange("traffic", traffic_words(traffic_->sums()))) {
    const TrafficSums sums = parse_traffic_words(text);
    if (std::exchange(first, false))
      all_traffic_ = sums;
    else
      all_traffic_.add(sums);
  }
  if (recorder_)
    recorder_->update([&](RunManifest& manifest) { manifest.traffic = traffic_record(all_traffic_); });
}

void Trainer::conclude() {
  record_fingerprints();
  if (!sample_.empty()) recorder_->say(sample_);
  recorder_->say(memory_text(*memory_));
  if (const std::string moved = traffic_text(all_traffic_, session_.world()); !moved.empty())
    recorder_->say(moved);
  const std::string reason =
      signal_ == 0 ? "done" : cat("stopped by ", signal_name(signal_), " after step ", step_);
  const std::string table = recorder_->finish(exit_code(), reason);
  std::cout << '\n' << table << std::flush;
  if (signal_ != 0) log_notice(cat(reason, "; ", how_to_go_on()));
}

std::string Trainer::how_to_go_on() const {
  if (step_ < total_steps_ || !config_.model_export.enabled) return "continue with --resume auto";
  return cat("what is left is the export, which --resume auto makes, or: ftrun convert ",
             config_.output_dir, " --out ", export_folder(config_));
}

int Trainer::exit_code() const {
  return signal_ == 0 ? 0 : stop_exit_code(signal_);
}

int train(const TrainRequest& request) {
  install_crash_handler();
  end_at_once_on_signals();
  return Trainer(request).run();
}

}  // namespace ftrun

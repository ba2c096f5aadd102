#include "rank_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "axes/mesh.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/hf_export.h"
#include "data/token_file.h"
#include "kernels/kernels.h"
#include "model/families.h"
#include "model/freeze.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

/// Returns a hash of `x` (SplitMix64).
uint64_t hash_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

float small_number(uint64_t seed) {
  return static_cast<float>(static_cast<double>(hash_bits(seed) >> 11) * 0x1p-53 * 0.4 - 0.2);
}

RankMemory& allocate_for_plan(RankMemory& memory, const StepPlan& plan) {
  memory.allocate(plan.train.program);
  memory.allocate(plan.evaluate.program);
  return memory;
}

Config with_data_ranks(Config config, int ranks) {
  config.parallel.data = ranks / (config.parallel.tensor * config.parallel.pipeline);
  return config;
}

SwapOptions swap_of(const Config& config, int rank) {
  SwapOptions swap;
  swap.folder = config.zero.offload_optimizer.nvme_path;
  swap.name = cat("rank", rank);
  return swap;
}

std::vector<ExportTensor> tensors_of(const ModelConfig& model) {
  std::vector<ExportTensor> tensors;
  for (const TensorInfo& tensor : build_model(model, {1, 8}, GraphMode::kTrain).tensors)
    tensors.push_back({tensor.name, tensor.shape});
  return tensors;
}

}  // namespace

ModelConfig small_model(bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.vocab_rows = 32;
  c.hidden = 16;
  c.feed_forward = 24;
  c.layers = 2;
  c.query_heads = 4;
  c.kv_heads = 2;
  c.head_size = 4;
  c.tied = tied;
  c.windows = {0, 0};
  return c;
}

ModelConfig model_of_many_blocks(bool tied) {
  ModelConfig c = small_model(tied);
  c.vocab_rows = 200;
  c.hidden = 64;
  c.feed_forward = 160;
  c.layers = 3;
  c.head_size = 16;
  c.windows = {0, 0, 0};
  return c;
}

void remove_norm_weights(ModelConfig& model) {
  model.norm = NormKind::kLayer;
  model.norm_weight = model.norm_bias = false;
}

Config small_run_config() {
  Config config;
  config.data.sequence_length = 8;
  config.train_micro_batch_size_per_gpu = 2;
  config.gradient_accumulation_steps = 2;
  config.optimizer.type = OptimizerType::kAdamW;
  config.optimizer.lr = 1e-2;
  config.scheduler.type = SchedulerType::kConstant;
  return config;
}

Config config_of_stage(int64_t stage) {
  Config config = small_run_config();
  config.zero.stage = stage;
  config.zero.param_persistence_threshold = 0;
  return config;
}

Config with_dropout(Config config) {
  config.adapter.type = AdapterType::kLora;
  config.adapter.r = 4;
  config.adapter.target_modules = {"all-linear"};
  config.adapter.init_lora_weights = LoraInit::kBothUniform;
  config.adapter.lora_dropout = 0.25;
  return config;
}

const std::string& swap_folder() {
  static const TemporaryFolder folder;
  return folder.path();
}

void offload_to(Config& config, OffloadDevice device) {
  if (config.zero.stage > 0) config.zero.offload_optimizer.device = device;
  if (config.zero.stage == 3) config.zero.offload_param.device = device;
  if (device != OffloadDevice::kNvme) return;
  config.zero.offload_optimizer.nvme_path = config.zero.offload_param.nvme_path = swap_folder();
}

float weight_of(const std::string& tensor, int64_t index) {
  return small_number(xxh3(tensor.data(), tensor.size()) + static_cast<uint64_t>(index));
}

ModelFolder write_model_folder(const std::string& path, const ModelConfig& model,
                               const WeightOf& weight) {
  ExportOptions options;
  options.folder = path;
  options.config_json = "{}";
  export_model(posix_files(), options, tensors_of(model),
               [&](const ExportPiece& piece, std::span<float> out) {
                 for (int64_t i = piece.begin; i < piece.end; ++i)
                   out[static_cast<size_t>(i - piece.begin)] = weight(piece.tensor, i);
               });
  return ModelFolder(path);
}

const ModelFolder& model_folder(const ModelConfig& model) {
  static std::mutex mutex;
  static const TemporaryFolder root;
  static std::map<std::string, std::unique_ptr<ModelFolder>> folders;
  const std::lock_guard lock(mutex);
  std::unique_ptr<ModelFolder>& folder = folders[config_text(model)];
  if (folder) return *folder;
  folder = std::make_unique<ModelFolder>(
      write_model_folder(root / std::to_string(folders.size()), model, weight_of));
  return *folder;
}

MicroBatch random_batch(const BatchShape& shape, uint64_t seed, int64_t vocab_rows) {
  const auto positions = static_cast<size_t>(shape.sequences * shape.sequence_length);
  const auto vocabulary = static_cast<uint64_t>(vocab_rows);
  MicroBatch batch;
  batch.tokens.resize(positions);
  batch.labels.resize(positions);
  batch.positions.resize(positions);
  batch.starts.assign(positions, 0);
  const auto length = static_cast<size_t>(shape.sequence_length),
             filled = length - static_cast<size_t>(shape.sequence_padding);
  for (size_t i = 0; i < positions; ++i) {
    const size_t place = i % length, number = i / length * filled + place;
    if (place >= filled) {
      batch.labels[i] = kIgnoredLabel;
      batch.starts[i] = static_cast<int32_t>(place);
      continue;
    }
    batch.tokens[i] = static_cast<int32_t>(hash_bits(seed * 1000 + number) % vocabulary);
    batch.labels[i] = static_cast<int32_t>(hash_bits(seed * 1000 + number + 1) % vocabulary);
    batch.positions[i] = static_cast<int32_t>(place);
  }
  batch.counted_tokens = shape.sequences * static_cast<int64_t>(filled);
  return batch;
}

namespace {

void replace_program(ProgramPlan& plan, StepProgram step) {
  plan.program = std::move(step.program);
  plan.pieces = std::move(step.pieces);
  plan.shardings = std::move(step.shardings);
}

/// Returns a run's plan with the fixture's own settings applied. Evaluations have one micro-batch,
/// even where a pipeline's plan has several. Programs that do not change are kept, because planning
/// is a large part of a short training's time.
StepPlan apply_settings(StepPlan plan, const Config& config, const RankFixtureSettings& settings) {
  const bool is_alone = plan.options.state.pipeline.stages() == 1;
  const bool trains_otherwise =
      settings.trains || (is_alone && plan.options.schedule != settings.schedule);
  if (is_alone) plan.options.schedule = settings.schedule;
  if (settings.trains) {
    plan.train.model = freeze(std::move(plan.train.model), settings.trains);
    plan.partition = build_units(
        plan.train.model, config.partition.unit,
        {config.zero.param_persistence_threshold, config.zero.model_persistence_threshold},
        plan.options.state.has_8bit_states);
  }
  if (trains_otherwise)
    replace_program(plan.train,
                    build_training_step(plan.train.model, plan.partition, plan.options));
  if (trains_otherwise || plan.evaluation_micro_batches != 1) {
    StepOptions once = plan.options;
    once.micro_batches = 1;
    replace_program(plan.evaluate,
                    build_evaluation_step(plan.evaluate.model, plan.partition, once));
  }
  if (settings.mutates) settings.mutates(plan.train.program);
  return plan;
}

}  // namespace

RankFixture::RankFixture(const Config& from, const ModelConfig& model, const RankCommunicators& of,
                         Gpu* gpu, const RankFixtureSettings& settings)
    : config(with_data_ranks(from, of.host_world->size())),
      folder(model_folder(model)),
      communicators(of),
      plan(apply_settings(plan_steps(config, model, of.rank()), config, settings)),
      memory(of.shared_memory_communicator(), swap_of(config, of.rank()), nullptr, gpu),
      train_executor(plan.train.program, plan.train.model, allocate_for_plan(memory, plan),
                     communicators),
      evaluation_executor(plan.evaluate.program, plan.evaluate.model, memory, communicators),
      state(plan, memory),
      rank(of.rank()) {
  state.load(model_folder(model));
}

RankFixture::RankFixture(const Config& from, const ModelConfig& model, Communicator& group)
    : RankFixture(from, model, communicators_of(group)) {}

StepRun RankFixture::prepare_step(int64_t step) {
  StepRun run;
  run.micro_batches = batches;
  run.scalars = scheduled_scalars(config.optimizer, {config.scheduler, step}, step);
  run.scalars.token_loss_factor = kLossScale * gradient_divisor;
  run.scalars.dropout_key = dropout_key(11, step);
  run.policy = step_policy({.gradient_divisor = gradient_divisor, .clip_norm = kClipNorm});
  run.optimizer = config.optimizer;
  return run;
}

StepRun RankFixture::train(int64_t step) {
  batches.resize(static_cast<size_t>(config.gradient_accumulation_steps));
  const BatchShape& shape = plan.train.model.batch;
  for (size_t micro_batch = 0; micro_batch < batches.size(); ++micro_batch) {
    const auto place = static_cast<uint64_t>(data_parallel_place(plan.options.state).index);
    batches[micro_batch] =
        random_batch(shape, static_cast<uint64_t>(step) * 100 + micro_batch * 10 + place,
                     plan.train.model.vocab_rows);
    batches[micro_batch].first_token =
        static_cast<int64_t>(micro_batch * 10 + place) * shape.tokens();
    if (change_batch) change_batch(step, batches[micro_batch]);
  }
  StepRun run = prepare_step(step);
  train_executor.run(run);
  return run;
}

void overwrite_weight(RankFixture& fixture, const std::string& name, int64_t index, float value) {
  const Program& program = fixture.plan.train.program;
  const std::vector<UnitStatePiece>& pieces = fixture.plan.train.pieces;
  for (const UnitStatePiece& piece : pieces) {
    const bool has_copy =
        std::any_of(pieces.begin(), pieces.end(), [&](const UnitStatePiece& other) {
          return other.unit == piece.unit && other.state == UnitStatePiece::kWorking;
        });
    if (piece.state != (has_copy ? UnitStatePiece::kWorking : UnitStatePiece::kParam)) continue;
    for (const TensorSlice& slice :
         slices_in(fixture.plan.partition.unit(piece.unit), piece.begin, piece.end)) {
      if (fixture.plan.train.model.tensor(slice.tensor).name != name) continue;
      if (index < slice.offset || index >= slice.offset + slice.extent) continue;
      const DType dtype = program.at(piece.range.buffer).format.dtype;
      std::byte* at =
          fixture.memory.at(program, piece.range) +
          (slice.position_in_unit + index - slice.offset - piece.begin) * dtype_bytes(dtype);
      convert(&value, DType::kF32, at, dtype, 1);
    }
  }
}

namespace {

std::vector<std::byte> bytes_of(const StateSlice& slice) {
  const int64_t size = dtype_bytes(slice.dtype);
  const int64_t count = slice.box.numel();
  std::vector<std::byte> bytes(static_cast<size_t>(count * size));
  // Such a slice is read in two pieces, as the writer of checkpoints may do.
  if (slice.read) {
    slice.read(0, count / 3, bytes.data());
    slice.read(count / 3, count, bytes.data() + count / 3 * size);
  } else {
    std::memcpy(bytes.data(), slice.data, bytes.size());
  }
  return bytes;
}

}  // namespace

void CombinedState::add(const std::vector<StateSlice>& slices) {
  const std::lock_guard lock(mutex_);
  for (const StateSlice& slice : slices) {
    const int64_t size = dtype_bytes(slice.dtype);
    const int64_t elements = whole_box(slice.tensor_shape).numel();
    Tensor& tensor = tensors_[slice.tensor + "." + slice.kind];
    tensor.bytes.resize(static_cast<size_t>(elements * size));
    tensor.is_added.resize(static_cast<size_t>(elements));
    const std::vector<std::byte> bytes = bytes_of(slice);
    visit_runs(slice.tensor_shape, slice.box, [&](int64_t begin, int64_t end, int64_t position) {
      std::memcpy(tensor.bytes.data() + begin * size, bytes.data() + position * size,
                  static_cast<size_t>((end - begin) * size));
      for (int64_t i = begin; i < end; ++i)
        require(std::exchange(tensor.is_added[static_cast<size_t>(i)], 1) == 0,
                "an element is saved by one rank");
    });
  }
}

std::map<std::string, std::vector<std::byte>> CombinedState::contents() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<std::byte>> all;
  for (const auto& [name, tensor] : tensors_) {
    for (const char added : tensor.is_added) require(added == 1, "every element is saved");
    all[name] = tensor.bytes;
  }
  return all;
}

std::map<std::string, std::vector<std::byte>> saved_contents(const ModelState& state) {
  CombinedState whole;
  whole.add(state.slices());
  return whole.contents();
}

std::vector<std::vector<std::byte>> saved_slices(const ModelState& state) {
  std::vector<std::vector<std::byte>> all;
  for (const StateSlice& slice : state.slices()) all.push_back(bytes_of(slice));
  return all;
}

SingleRank::SingleRank() {
  rendezvous = std::move(Rendezvous::make_in_process(1).front());
  group = open_communicator(*rendezvous, "data", {0}, {});
}

namespace {

/// Runs `body` on one thread per rank. Returns the message of each thread's error; "" for none.
std::vector<std::string> on_threads(int world_size, std::chrono::milliseconds heartbeat,
                                    const std::function<void(Rendezvous&)>& body) {
  auto all = Rendezvous::make_in_process(world_size, std::chrono::seconds(20), heartbeat);
  std::vector<std::string> failures(all.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < all.size(); ++rank)
    threads.emplace_back([&, rank] { failures[rank] = error_text_of([&] { body(*all[rank]); }); });
  for (std::thread& thread : threads) thread.join();
  return failures;
}

}  // namespace

std::vector<std::string> errors_on_ranks(
    int world_size, const std::function<void(Rendezvous&, Communicator&)>& body,
    std::chrono::milliseconds heartbeat, CommBackend backend) {
  std::vector<int> members(static_cast<size_t>(world_size));
  std::iota(members.begin(), members.end(), 0);
  return on_threads(world_size, heartbeat, [&](Rendezvous& rendezvous) {
    const auto group = open_communicator(rendezvous, "data", members,
                                         {.backend = backend, .timeout = std::chrono::seconds(20)});
    body(rendezvous, *group);
  });
}

void run_on_mesh(const StateOptions& options,
                 const std::function<void(Rendezvous&, const RankCommunicators&)>& body) {
  const RankMesh mesh = state_mesh(options);
  require_no_failures(
      on_threads(mesh.world_size(), std::chrono::milliseconds(100), [&](Rendezvous& rendezvous) {
        const PerAxis place = mesh.coordinates_of(rendezvous.rank());
        StateOptions rank_options = options;
        rank_options.data.index = place.data;
        rank_options.replica = place.data_replicate;
        rank_options.tensor.index = place.tensor;
        rank_options.pipeline_stage = place.pipeline;
        const GroupCollection groups = make_group_collection(rank_options);
        const OwnedCommunicators open(rendezvous, groups.list, groups.model,
                                      {.timeout = std::chrono::seconds(20)});
        body(rendezvous, open.communicators());
      }));
}

void run_on_mesh(int replicas, int shards,
                 const std::function<void(Rendezvous&, const RankCommunicators&)>& body,
                 int secondary_shards) {
  StateOptions options;
  options.data.count = shards;
  options.replicas = replicas;
  options.secondary_shards = secondary_shards;
  run_on_mesh(options, body);
}

void require_no_failures(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) REQUIRE(failure == "");
}

}  // namespace ftrun::testing

#include "engine/model_state.h"

#include <future>
#include <memory>
#include <optional>

#include "checkpoint/save.h"
#include "kernels/kernels.h"
#include "model/families.h"
#include "optimizers/optimizers.h"
#include "program/memory_plan.h"
#include "program/state_pieces.h"
#include "program/unit_placement.h"
#include "rank_fixture.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using testing::RankFixture;
using testing::SingleRank;
using Contents = std::map<std::string, std::vector<std::byte>>;

enum class Precision { kFp32, kFp16, kBf16, kBf16Master };

Config config_with(int64_t stage, OffloadDevice device, Precision precision = Precision::kFp32,
                   int64_t small = 0) {
  Config config = testing::config_of_stage(stage);
  config.zero.param_persistence_threshold = small;
  config.fp16.enabled = precision == Precision::kFp16;
  config.bf16.enabled = precision == Precision::kBf16 || precision == Precision::kBf16Master;
  config.bf16.bf16_master_weights_and_grads = precision == Precision::kBf16Master;
  config.bf16.bf16_optimizer_states = precision == Precision::kBf16Master;
  testing::offload_to(config, device);
  return config;
}

struct Layout {
  int replicas;
  int shards;
  int64_t stage;
  OffloadDevice device;
  Precision precision;
  int64_t small;
};

std::string name_of_layout(const Layout& l) {
  return cat(l.replicas, "x", l.shards, " ranks, stage ", l.stage, ", tier ", name_of(l.device),
             ", numbers ", static_cast<int>(l.precision), ", small up to ", l.small);
}

/// Lists layouts: every stage and tier in fp32, fp16 and bf16, with and without small tensors, and
/// some with a single rank or with replicas.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int64_t stage : {0, 1, 2, 3})
    for (const OffloadDevice device :
         {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      if (stage == 0 && device != OffloadDevice::kNone) continue;
      for (const Precision precision :
           {Precision::kFp32, Precision::kFp16, Precision::kBf16, Precision::kBf16Master}) {
        if (stage == 0 && precision == Precision::kBf16Master) continue;
        all.push_back({1, 3, stage, device, precision, precision == Precision::kFp16 ? 64 : 0});
      }
    }
  all.push_back({1, 1, 3, OffloadDevice::kNone, Precision::kFp32, 0});
  all.push_back({1, 1, 3, OffloadDevice::kNvme, Precision::kBf16, 64});
  for (const int64_t stage : {1, 2, 3}) {
    all.push_back({2, 2, stage, OffloadDevice::kNone, Precision::kFp32, 64});
    all.push_back({2, 2, stage, OffloadDevice::kCpu, Precision::kBf16, 0});
    all.push_back({3, 1, stage, OffloadDevice::kNone, Precision::kBf16, 64});
  }
  all.push_back({2, 2, 3, OffloadDevice::kNvme, Precision::kFp16, 64});
  return all;
}

Config config_of(const Layout& l) {
  Config config = config_with(l.stage, l.device, l.precision, l.small);
  config.parallel.data_replicate = l.replicas;
  return config;
}

/// Runs `work` on each rank of a layout, and returns what the ranks then save together.
Contents run_and_save(const Layout& l, const std::function<void(Rendezvous&, RankFixture&)>& work) {
  testing::CombinedState whole;
  testing::run_on_mesh(
      l.replicas, l.shards, [&](Rendezvous& rendezvous, const RankCommunicators& communicators) {
        RankFixture fixture(config_of(l), testing::model_of_many_blocks(), communicators);
        work(rendezvous, fixture);
        whole.add(fixture.state.slices());
      });
  return whole.contents();
}

std::vector<std::byte> folder_weights(const std::string& tensor, size_t elements, DType dtype) {
  std::vector<float> weights(elements);
  for (size_t i = 0; i < elements; ++i)
    weights[i] = testing::weight_of(tensor, static_cast<int64_t>(i));
  std::vector<std::byte> bytes(elements * static_cast<size_t>(dtype_bytes(dtype)));
  convert(weights.data(), DType::kF32, bytes.data(), dtype, static_cast<int64_t>(elements));
  return bytes;
}

CheckpointGroup checkpoint_group_of(Rendezvous& rendezvous) {
  return {rendezvous.rank(), rendezvous.world_size(), [&rendezvous](const std::string& text) {
            return rendezvous.all_gather_text("save", text);
          }};
}

TEST_CASE("the slices that all ranks load from a folder make up the model, each element once") {
  set_kernel_threads(1);
  for (const Layout& l : layouts()) {
    INFO(name_of_layout(l));
    std::vector<StateInfo> states;
    const Contents saved = run_and_save(l, [&](Rendezvous& rendezvous, RankFixture& fixture) {
      if (rendezvous.rank() == 0) states = fixture.state.states();
    });
    REQUIRE(states.size() == saved.size());
    const DType expected_dtype = l.precision == Precision::kBf16Master ? DType::kBF16 : DType::kF32;
    for (const StateInfo& state : states) {
      INFO(state.tensor << "." << state.kind);
      REQUIRE(state.dtype == expected_dtype);
      size_t elements = 1;
      for (const int64_t dim : state.shape) elements *= static_cast<size_t>(dim);
      const std::vector<std::byte>& bytes = saved.at(state.tensor + "." + state.kind);
      if (state.kind == "param")
        REQUIRE(bytes == folder_weights(state.tensor, elements, expected_dtype));
      else
        REQUIRE(bytes == std::vector<std::byte>(elements *
                                                static_cast<size_t>(dtype_bytes(expected_dtype))));
    }
  }
}

/// Returns the same run with checkpoints in the background.
Config saving_config_of(const Layout& l) {
  Config config = config_of(l);
  config.train.steps = 10;
  config.checkpoint.every = 2;
  config.checkpoint.background = true;
  return config;
}

void train(RankFixture& fixture, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) fixture.train(step);
}

TEST_CASE(
    "a snapshot stays unchanged while training continues, and changes nothing in the training") {
  set_kernel_threads(1);
  for (const Layout& l : layouts()) {
    INFO(name_of_layout(l));
    const Contents second =
        run_and_save(l, [](Rendezvous&, RankFixture& fixture) { train(fixture, 1, 2); });
    const Contents sixth =
        run_and_save(l, [](Rendezvous&, RankFixture& fixture) { train(fixture, 1, 6); });
    REQUIRE(second != sixth);
    testing::CombinedState kept, kept_again, last;
    testing::run_on_mesh(
        l.replicas, l.shards, [&](Rendezvous&, const RankCommunicators& communicators) {
          RankFixture fixture(saving_config_of(l), testing::model_of_many_blocks(), communicators);
          train(fixture, 1, 2);
          std::future<void> reader =
              std::async(std::launch::async,
                         [&, slices = fixture.state.take_snapshot()] { kept.add(slices); });
          train(fixture, 3, 4);
          reader.get();
          fixture.state.release_snapshot();
          train(fixture, 5, 5);
          // The optimizer state on disk has moved to its second place by now, so the snapshot must
          // not depend on the first.
          train(fixture, 6, 6);
          const std::vector<StateSlice> slices = fixture.state.take_snapshot();
          last.add(fixture.state.slices());
          train(fixture, 7, 8);
          kept_again.add(slices);
          fixture.state.release_snapshot();
        });
    REQUIRE(kept.contents() == second);
    REQUIRE(last.contents() == sixth);
    REQUIRE(kept_again.contents() == sixth);
  }
}

TEST_CASE("the memory plan has room for a snapshot of what a rank saves, in memory and on disk") {
  const auto planned = [](const Config& config, Tier tier) {
    const StepPlan plan = plan_steps(config, testing::model_of_many_blocks(), 0);
    return plan_memory(plan).at(tier).persistent[static_cast<size_t>(Category::kSnapshot)];
  };
  Config config = saving_config_of({1, 1, 1, OffloadDevice::kNone, Precision::kBf16, 0});
  config.parallel.data = 1;
  const StepPlan plan = plan_steps(config, testing::model_of_many_blocks(), 0);
  int64_t padded = 0;
  for (const Unit& unit : plan.partition.units) padded += unit.padded_numel;
  // A snapshot holds master weights and two moments: 12 bytes per element.
  REQUIRE(planned(config, Tier::kHost) == 12 * padded);
  REQUIRE(planned(config, Tier::kDisk) == 0);
  testing::offload_to(config, OffloadDevice::kNvme);
  REQUIRE(planned(config, Tier::kHost) + planned(config, Tier::kDisk) == 12 * padded);
  REQUIRE(planned(config, Tier::kDisk) > 0);
  config.checkpoint.background = false;
  REQUIRE(planned(config, Tier::kHost) + planned(config, Tier::kDisk) == 0);
  config.checkpoint.background = true;
  config.checkpoint.every = 10;  // the only save is after the last step
  REQUIRE(planned(config, Tier::kDisk) == 0);
  config.checkpoint.every_minutes = 0.5;
  REQUIRE(planned(config, Tier::kDisk) > 0);
}

TEST_CASE("ranks divide the saving: none writes all of a state that all of them hold") {
  testing::run_on_mesh(1, 3, [&](Rendezvous&, const RankCommunicators& communicators) {
    RankFixture fixture(config_with(0, OffloadDevice::kNone), testing::model_of_many_blocks(),
                        communicators);
    int64_t saved = 0;
    for (const StateSlice& slice : fixture.state.slices()) saved += slice.box.numel();
    int64_t held = 0;
    for (const UnitStatePiece& piece : fixture.plan.train.pieces) held += piece.end - piece.begin;
    require(saved > held / 6 && saved < held / 2, "about a third of it");
  });
}

TEST_CASE("any layout reads back what another saved, bit for bit, and continues alike") {
  set_kernel_threads(1);
  const ModelConfig model = testing::model_of_many_blocks();
  // Every dtype has the same states in fp32, so layouts of different dtypes read each other's
  // checkpoints.
  const std::vector<Layout> chosen{{1, 3, 0, OffloadDevice::kNone, Precision::kFp32, 0},
                                   {1, 3, 1, OffloadDevice::kCpu, Precision::kFp32, 0},
                                   {1, 3, 2, OffloadDevice::kNvme, Precision::kFp32, 0},
                                   {1, 3, 3, OffloadDevice::kNone, Precision::kFp32, 64},
                                   {1, 3, 3, OffloadDevice::kNvme, Precision::kFp32, 0},
                                   {2, 2, 3, OffloadDevice::kCpu, Precision::kFp32, 0},
                                   {1, 1, 3, OffloadDevice::kCpu, Precision::kFp32, 0},
                                   {1, 3, 3, OffloadDevice::kCpu, Precision::kBf16, 0},
                                   {1, 3, 0, OffloadDevice::kNone, Precision::kBf16, 0},
                                   {1, 3, 2, OffloadDevice::kNone, Precision::kFp16, 64}};
  for (const Layout& writer : {chosen[0], chosen[2], chosen[4], chosen[5], chosen[7]}) {
    const testing::TemporaryFolder scratch;
    const Contents saved = run_and_save(writer, [&](Rendezvous& rendezvous, RankFixture& fixture) {
      fixture.train(1);
      fixture.train(2);
      save_checkpoint(posix_files(), {scratch.path()}, {}, fixture.state.slices(),
                      checkpoint_group_of(rendezvous));
    });
    for (const Layout& reader : chosen) {
      INFO(name_of_layout(writer) << " -> " << name_of_layout(reader));
      const Contents read = run_and_save(reader, [&](Rendezvous&, RankFixture& fixture) {
        Checkpoint checkpoint(scratch / "step-00000000");
        fixture.load(checkpoint);
      });
      REQUIRE(read == saved);
    }
    // Layouts with the same ranks, micro-batches and dtype must continue with the same bits. This
    // shows that what layers read (a 16-bit copy, another tier) was loaded as well.
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
      std::vector<Contents> next;
      for (const int64_t stage : {0, 3})
        for (const OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kNvme}) {
          if (stage == 0 && device != OffloadDevice::kNone) continue;
          testing::CombinedState whole;
          testing::run_on_mesh(1, 3, [&](Rendezvous&, const RankCommunicators& communicators) {
            Config config = config_with(stage, device, precision);
            config.gradient_accumulation_steps = 1;
            RankFixture fixture(config, model, communicators);
            Checkpoint checkpoint(scratch / "step-00000000");
            fixture.load(checkpoint);
            fixture.train(3);
            whole.add(fixture.state.slices());
          });
          next.push_back(whole.contents());
        }
      REQUIRE(next[0] != saved);
      REQUIRE(next[1] == next[0]);
      REQUIRE(next[2] == next[0]);
    }
  }
}

/// Converts states to another precision: exactly if it is wider, otherwise to the nearest value,
/// ties to even.
Contents convert_states(const Contents& states, DType from, DType to) {
  Contents all;
  for (const auto& [name, bytes] : states) {
    const auto elements = static_cast<int64_t>(bytes.size()) / dtype_bytes(from);
    std::vector<std::byte>& out = all[name];
    out.resize(static_cast<size_t>(elements * dtype_bytes(to)));
    convert(bytes.data(), from, out.data(), to, elements);
  }
  return all;
}

TEST_CASE(
    "a checkpoint whose states have another precision is read by any layout, and all continue "
    "alike") {
  set_kernel_threads(1);
  const std::vector<Layout> wide{{1, 3, 0, OffloadDevice::kNone, Precision::kBf16, 0},
                                 {1, 3, 2, OffloadDevice::kCpu, Precision::kBf16, 0},
                                 {1, 3, 3, OffloadDevice::kNvme, Precision::kBf16, 0},
                                 {2, 2, 3, OffloadDevice::kCpu, Precision::kFp32, 64}};
  const std::vector<Layout> narrow{{1, 3, 1, OffloadDevice::kNone, Precision::kBf16Master, 0},
                                   {1, 3, 2, OffloadDevice::kCpu, Precision::kBf16Master, 0},
                                   {1, 3, 3, OffloadDevice::kNvme, Precision::kBf16Master, 0},
                                   {2, 2, 3, OffloadDevice::kCpu, Precision::kBf16Master, 64}};
  for (const bool narrows : {true, false}) {
    const DType from = narrows ? DType::kF32 : DType::kBF16,
                to = narrows ? DType::kBF16 : DType::kF32;
    for (const Layout& writer : narrows ? wide : narrow) {
      const testing::TemporaryFolder scratch;
      const Contents saved =
          run_and_save(writer, [&](Rendezvous& rendezvous, RankFixture& fixture) {
            train(fixture, 1, 2);
            save_checkpoint(posix_files(), {scratch.path()}, {}, fixture.state.slices(),
                            checkpoint_group_of(rendezvous));
          });
      std::vector<Contents> next;
      for (const Layout& reader : narrows ? narrow : wide) {
        INFO(name_of_layout(writer) << " -> " << name_of_layout(reader));
        testing::CombinedState trained;
        const Contents read = run_and_save(reader, [&](Rendezvous&, RankFixture& fixture) {
          Checkpoint checkpoint(scratch / "step-00000000");
          const std::vector<StateDtypeChange> conversions = fixture.load(checkpoint);
          require(conversions.size() == 1 && conversions[0].stored_dtype == from &&
                      conversions[0].run_dtype == to,
                  "one conversion");
          require(
              conversions[0].kinds == std::vector<std::string>{"exp_avg", "exp_avg_sq", "param"},
              "of all states");
        });
        REQUIRE(read == convert_states(saved, from, to));
        // Only layouts without replicas are comparable here: three data shards whose layers compute
        // in bf16.
        if (reader.replicas > 1) continue;
        testing::run_on_mesh(1, 3, [&](Rendezvous&, const RankCommunicators& communicators) {
          Config config = config_of(reader);
          config.gradient_accumulation_steps = 1;
          RankFixture fixture(config, testing::model_of_many_blocks(), communicators);
          Checkpoint checkpoint(scratch / "step-00000000");
          fixture.load(checkpoint);
          fixture.train(3);
          trained.add(fixture.state.slices());
        });
        next.push_back(trained.contents());
        REQUIRE(next.back() == next.front());
        REQUIRE(next.back() != read);
      }
    }
  }
}

TEST_CASE("a snapshot of codes and their scales stays unchanged, in memory and on disk") {
  set_kernel_threads(1);
  for (const OffloadDevice device :
       {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    INFO(name_of(device));
    // A minimum of 30 elements also codes q, k and v, which are adjacent in memory without gaps and
    // therefore begin within blocks.
    const Layout l{1, 3, 2, device, Precision::kFp32, 0};
    const auto run = [&](const std::function<void(RankFixture&)>& work) {
      testing::CombinedState whole;
      testing::run_on_mesh(l.replicas, l.shards,
                           [&](Rendezvous&, const RankCommunicators& communicators) {
                             Config config = saving_config_of(l);
                             config.optimizer =
                                 optimizer_traits(OptimizerType::kAdamW8bit).defaults;
                             config.optimizer.type = OptimizerType::kAdamW8bit;
                             config.optimizer.min_8bit_size = 30;
                             RankFixture fixture(config, testing::small_model(), communicators);
                             work(fixture);
                             whole.add(fixture.state.slices());
                           });
      return whole.contents();
    };
    const Contents second = run([](RankFixture& fixture) { train(fixture, 1, 2); });
    const Contents fourth = run([](RankFixture& fixture) { train(fixture, 1, 4); });
    REQUIRE(second != fourth);
    testing::CombinedState kept;
    const Contents last = run([&](RankFixture& fixture) {
      train(fixture, 1, 2);
      const std::vector<StateSlice> slices = fixture.state.take_snapshot();
      train(fixture, 3, 4);
      kept.add(slices);
      fixture.state.release_snapshot();
    });
    REQUIRE(kept.contents() == second);
    REQUIRE(last == fourth);
  }
}

TEST_CASE("8-bit states are not converted to another precision") {
  const testing::TemporaryFolder scratch;
  SingleRank single_rank;
  RankFixture wide(config_with(1, OffloadDevice::kNone), testing::small_model(),
                   *single_rank.group);
  save_checkpoint(posix_files(), {scratch.path()}, {}, wide.state.slices(), {});
  Config config = config_with(1, OffloadDevice::kNone);
  config.optimizer = optimizer_traits(OptimizerType::kAdamW8bit).defaults;
  config.optimizer.type = OptimizerType::kAdamW8bit;
  config.optimizer.min_8bit_size = 1;
  RankFixture with_8bit(config, testing::small_model(), *single_rank.group);
  Checkpoint checkpoint(scratch / "step-00000000");
  REQUIRE_THROWS_WITH(with_8bit.load(checkpoint),
                      Catch::Matchers::Contains(" is F32, the run needs U8"));
}

TEST_CASE("only moments can be kept in another precision") {
  const testing::TemporaryFolder scratch;
  SingleRank single_rank;
  RankFixture wide(config_with(1, OffloadDevice::kNone, Precision::kBf16), testing::small_model(),
                   *single_rank.group);
  train(wide, 1, 2);
  Contents expected = testing::saved_contents(wide.state);
  save_checkpoint(posix_files(), {scratch.path()}, {}, wide.state.slices(), {});
  Config config = config_with(1, OffloadDevice::kNone, Precision::kBf16);
  config.bf16.bf16_optimizer_states = true;
  RankFixture narrow(config, testing::small_model(), *single_rank.group);
  Checkpoint checkpoint(scratch / "step-00000000");
  const std::vector<StateDtypeChange> conversions = narrow.load(checkpoint);
  REQUIRE(conversions.size() == 1);
  REQUIRE(conversions[0].kinds == std::vector<std::string>{"exp_avg", "exp_avg_sq"});
  const Contents rounded = convert_states(expected, DType::kF32, DType::kBF16);
  for (auto& [name, bytes] : expected)
    if (!name.ends_with(".param")) bytes = rounded.at(name);
  REQUIRE(testing::saved_contents(narrow.state) == expected);
}

TEST_CASE("another partition reads a checkpoint back bit for bit") {
  const testing::TemporaryFolder scratch;
  Contents saved;
  SingleRank single_rank;
  {
    RankFixture fixture(config_with(0, OffloadDevice::kNone), testing::small_model(),
                        *single_rank.group);
    fixture.train(1);
    saved = testing::saved_contents(fixture.state);
    save_checkpoint(posix_files(), {scratch.path()}, {}, fixture.state.slices(), {});
  }
  for (const UnitGranularity unit : {UnitGranularity::kBlock, UnitGranularity::kModel}) {
    Config config = config_with(3, OffloadDevice::kNone, Precision::kFp32, 64);
    config.partition.unit = unit;
    RankFixture other(config, testing::small_model(), *single_rank.group);
    REQUIRE(testing::saved_contents(other.state) != saved);
    Checkpoint checkpoint(scratch / "step-00000000");
    other.load(checkpoint);
    REQUIRE(testing::saved_contents(other.state) == saved);
  }
}

/// A layout of `degree` tensor-parallel ranks, each with data-parallel ranks as `layout` says.
struct SplitLayout {
  int degree;
  Layout layout;
};

/// Sets the part of a tensor of model_of_many_blocks() that a tensor-parallel rank uses: columns of
/// the projections that end a block (o_proj, down_proj), rows of the other matrices, and norms as a
/// whole. There are two key and value heads, so with more ranks than two some use copies of them.
void split_tensor(TensorInfo& tensor, int degree, int index) {
  const auto is = [&](const char* word) { return tensor.name.find(word) != std::string::npos; };
  if (is("norm")) {
    tensor.copies = degree;
    return;
  }
  tensor.copies = is("k_proj") || is("v_proj") ? std::max(1, degree / 2) : 1;
  const size_t dimension = is("o_proj") || is("down_proj") ? 1 : 0;
  tensor.local.extent[dimension] /= degree / tensor.copies;
  tensor.local.offset[dimension] = tensor.local.extent[dimension] * (index / tensor.copies);
}

/// The state of one rank of a layout, in memory that suits the programs of its stage; no step runs.
struct SplitRank {
  SplitRank(const SplitLayout& split, int index, int shard, Communicator& single_rank)
      : memory(single_rank,
               {.folder = testing::swap_folder(), .name = cat("split", index, "-", shard)}) {
    const Layout& l = split.layout;
    const bool narrow = l.precision == Precision::kBf16;
    const DType compute = narrow ? DType::kBF16 : DType::kF32;
    plan.train.model =
        build_model(testing::model_of_many_blocks(), {1, 8}, GraphMode::kTrain, {compute, compute});
    plan.train.model.split = {.degree = split.degree, .index = index};
    for (TensorInfo& tensor : plan.train.model.tensors) split_tensor(tensor, split.degree, index);
    plan.partition = build_units(plan.train.model, UnitGranularity::kLayer, {l.small, INT64_MAX});
    StateOptions& options = plan.options.state;
    options.zero_stage = static_cast<int>(l.stage);
    options.data = {l.shards, shard};
    options.optimizer_states = {{.name = "exp_avg"}, {.name = "exp_avg_sq"}};
    options.optimizer_tier = l.device == OffloadDevice::kNvme  ? Tier::kDisk
                             : l.device == OffloadDevice::kCpu ? Tier::kHost
                                                               : Tier::kDevice;
    const UnitPlacement placement(plan.train.program, plan.train.model, plan.partition, options, 1);
    plan.train.pieces =
        list_unit_state_pieces(plan.train.program, plan.train.model, options, placement);
    memory.allocate(plan.train.program);
    state.emplace(plan, memory);
  }

  StepPlan plan;
  RankMemory memory;
  std::optional<ModelState> state;
};

std::vector<std::unique_ptr<SplitRank>> ranks_of(const SplitLayout& split,
                                                 Communicator& single_rank) {
  std::vector<std::unique_ptr<SplitRank>> ranks;
  for (int index = 0; index < split.degree; ++index)
    for (int shard = 0; shard < split.layout.shards; ++shard)
      ranks.push_back(std::make_unique<SplitRank>(split, index, shard, single_rank));
  return ranks;
}

/// Lists the slices of all ranks; together they hold each element once.
std::vector<StateSlice> slices_of(const std::vector<std::unique_ptr<SplitRank>>& ranks) {
  std::vector<StateSlice> all;
  for (const auto& rank : ranks)
    for (StateSlice& slice : rank->state->slices()) all.push_back(std::move(slice));
  return all;
}

Contents contents_of(const std::vector<StateSlice>& slices) {
  testing::CombinedState whole;
  whole.add(slices);
  return whole.contents();
}

const std::vector<SplitLayout> kSplits{
    {1, {1, 1, 0, OffloadDevice::kNone, Precision::kFp32, 0}},
    {2, {1, 1, 0, OffloadDevice::kNone, Precision::kFp32, 0}},
    {4, {1, 1, 1, OffloadDevice::kNone, Precision::kBf16, 0}},
    {2, {1, 2, 1, OffloadDevice::kCpu, Precision::kFp32, 64}},
    {4, {1, 3, 3, OffloadDevice::kNone, Precision::kFp32, 0}},
    {2, {1, 3, 3, OffloadDevice::kNvme, Precision::kBf16, 64}},
};

TEST_CASE(
    "units have the part of each tensor that a rank uses, and all ranks read their parts from the "
    "folder") {
  SingleRank single_rank;
  for (const SplitLayout& split : kSplits) {
    INFO(split.degree << " tensor-parallel, " << name_of_layout(split.layout));
    const auto ranks = ranks_of(split, *single_rank.group);
    int64_t local = 0, in_units = 0;
    for (const TensorInfo& tensor : ranks[0]->plan.train.model.tensors)
      local += tensor.local_numel();
    for (const Unit& unit : ranks[0]->plan.partition.units) in_units += unit.numel;
    REQUIRE(in_units == local);
    for (const auto& rank : ranks)
      rank->state->load(testing::model_folder(testing::model_of_many_blocks()));
    const Contents loaded = contents_of(slices_of(ranks));
    for (const TensorInfo& tensor : ranks[0]->plan.train.model.tensors)
      REQUIRE(loaded.at(tensor.name + ".param") ==
              folder_weights(tensor.name, static_cast<size_t>(tensor.numel()), DType::kF32));
  }
}

/// Saves each state as a whole, with different values in each, and returns the values.
Contents save_whole(const std::string& root, const std::vector<StateInfo>& states) {
  std::vector<StateSlice> whole;
  std::vector<std::vector<std::byte>> values;
  for (const StateInfo& state : states) {
    const Box box = whole_box(state.shape);
    values.push_back(
        folder_weights(state.tensor + state.kind, static_cast<size_t>(box.numel()), state.dtype));
    whole.push_back(
        {state.tensor, state.kind, state.dtype, state.shape, box, values.back().data(), nullptr});
  }
  save_checkpoint(posix_files(), {root}, {}, whole, {});
  return contents_of(whole);
}

TEST_CASE("ranks read back, bit for bit, what ranks with other parts of the tensors saved") {
  SingleRank single_rank;
  const testing::TemporaryFolder first;
  const Contents expected =
      save_whole(first.path(), ranks_of(kSplits[0], *single_rank.group)[0]->state->states());
  for (const SplitLayout& writer : kSplits) {
    const testing::TemporaryFolder scratch;
    {
      const auto ranks = ranks_of(writer, *single_rank.group);
      Checkpoint checkpoint(first / "step-00000000");
      for (const auto& rank : ranks)
        rank->state->load(checkpoint, testing::model_folder(testing::model_of_many_blocks()));
      save_checkpoint(posix_files(), {scratch.path()}, {}, slices_of(ranks), {});
    }
    Checkpoint checkpoint(scratch / "step-00000000");
    checkpoint.check_complete();
    for (const SplitLayout& reader : kSplits) {
      INFO(writer.degree << " tensor-parallel, " << name_of_layout(writer.layout) << " -> "
                         << reader.degree << ", " << name_of_layout(reader.layout));
      const auto ranks = ranks_of(reader, *single_rank.group);
      for (const auto& rank : ranks)
        rank->state->load(checkpoint, testing::model_folder(testing::model_of_many_blocks()));
      REQUIRE(contents_of(slices_of(ranks)) == expected);
    }
  }
}

TEST_CASE("tensor-parallel ranks read parts of tensors whose states have another precision") {
  SingleRank single_rank;
  const testing::TemporaryFolder scratch;
  std::vector<StateInfo> states = ranks_of(kSplits[0], *single_rank.group)[0]->state->states();
  for (StateInfo& state : states) state.dtype = DType::kBF16;
  const Contents expected =
      convert_states(save_whole(scratch.path(), states), DType::kBF16, DType::kF32);
  for (const SplitLayout& reader : kSplits) {
    INFO(reader.degree << " tensor-parallel, " << name_of_layout(reader.layout));
    const auto ranks = ranks_of(reader, *single_rank.group);
    Checkpoint checkpoint(scratch / "step-00000000");
    for (const auto& rank : ranks)
      rank->state->load(checkpoint, testing::model_folder(testing::model_of_many_blocks()));
    REQUIRE(contents_of(slices_of(ranks)) == expected);
  }
}

TEST_CASE("a checkpoint of another optimizer is refused") {
  const testing::TemporaryFolder scratch;
  SingleRank single_rank;
  Config sgd = testing::small_run_config();
  sgd.optimizer.type = OptimizerType::kSgd;
  sgd.optimizer.momentum = 0.9;
  RankFixture saver(sgd, testing::small_model(), *single_rank.group);
  save_checkpoint(posix_files(), {scratch.path()}, {}, saver.state.slices(), {});
  RankFixture adam(testing::small_run_config(), testing::small_model(), *single_rank.group);
  Checkpoint checkpoint(scratch / "step-00000000");
  REQUIRE_THROWS_AS(adam.load(checkpoint), Error);
}

TEST_CASE("a folder of another model is refused with the names of its tensors") {
  SingleRank single_rank;
  RankFixture fixture(testing::small_run_config(), testing::small_model(), *single_rank.group);
  REQUIRE_THROWS_WITH(fixture.state.load(testing::model_folder(testing::model_of_many_blocks())),
                      Catch::Contains("the weights are not those of its config.json") &&
                          Catch::Contains("model.layers.2.mlp.up_proj.weight"));
}

TEST_CASE(
    "pieces of a parameter are collected in the order of its tensor, whichever rank holds them") {
  set_kernel_threads(1);
  for (const Layout& l : layouts()) {
    INFO(name_of_layout(l));
    std::map<std::string, std::vector<float>> collected;
    const Contents saved = run_and_save(l, [&](Rendezvous&, RankFixture& fixture) {
      fixture.train(1);
      if (fixture.plan.options.state.replica > 0) return;
      const bool receives = fixture.rank == 0;
      for (const TensorInfo& tensor : fixture.plan.train.model.tensors) {
        int64_t size = 1;
        for (const int64_t dim : tensor.shape) size *= dim;
        std::vector<float> whole(receives ? static_cast<size_t>(size) : 0);
        const int64_t cuts[] = {0, 1, size / 3, size / 2, size - 1, size};
        for (size_t i = 0; i + 1 < std::size(cuts); ++i)
          fixture.state.gather_elements(
              tensor.name, cuts[i], cuts[i + 1], receives, *fixture.communicators.host_model,
              receives ? std::span(whole).subspan(static_cast<size_t>(cuts[i]),
                                                  static_cast<size_t>(cuts[i + 1] - cuts[i]))
                       : std::span<float>());
        if (receives) collected[tensor.name] = std::move(whole);
      }
    });
    REQUIRE_FALSE(collected.empty());
    for (const auto& [name, values] : collected) {
      const std::vector<std::byte>& bytes = saved.at(name + ".param");
      const DType dtype = l.precision == Precision::kBf16Master ? DType::kBF16 : DType::kF32;
      std::vector<float> expected(values.size());
      convert(bytes.data(), dtype, expected.data(), DType::kF32,
              static_cast<int64_t>(values.size()));
      REQUIRE(values == expected);
    }
  }
}

}  // namespace
}  // namespace ftrun

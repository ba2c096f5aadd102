#include "base/error.h"
#include "config/ranks.h"
#include "helpers.h"
#include "source_paths.h"

#include <catch2/catch.hpp>

// These tests read launcher files of Hugging Face Accelerate as configs. The files are in
// tests/config/accelerate, in the form that `accelerate config` writes.

namespace ftrun {
namespace {

const std::string kFolder = testing::source_dir() + "/tests/config/accelerate/";

Lines problems_in(const std::string& file) {
  Lines lines = problem_texts(load_config({kFolder + file}).problems);
  for (std::string& line : lines) {
    const size_t at = line.find(kFolder);
    if (at == 0) line.erase(0, kFolder.size());
  }
  return lines;
}

WrittenConfig read_launcher_file(const std::string& file, const Lines& overrides = {}) {
  const LoadResult loaded = load_config({kFolder + file}, overrides);
  REQUIRE(loaded.ok());
  return loaded.written;
}

Config values_in(const std::string& file, const Lines& overrides = {}) {
  return with_defaults(read_launcher_file(file, overrides));
}

const std::string kHead = "distributed_type: DEEPSPEED\n";

}  // namespace

TEST_CASE("an Accelerate file's block, process count and precision are read as a config") {
  const Config config = values_in("zero3.yaml");
  CHECK(config.zero.stage == 3);
  CHECK(config.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(config.zero.offload_param.device == OffloadDevice::kNone);
  CHECK(config.gradient_accumulation_steps == 4);
  CHECK(config.gradient_clipping == 0.5);
  CHECK(config.bf16.enabled);
  CHECK(config.parallel.data == 8);
  CHECK(count_ranks(read_launcher_file("zero3.yaml"), {}, {}).ranks == 8);
  CHECK(config.origins.position("zero_optimization.stage").line == 11);
  CHECK(config.origins.position("parallel.data").line == 18);
}

TEST_CASE("every key of an Accelerate file that has no meaning here is named") {
  CHECK(
      problems_in("zero3.yaml") ==
      Lines{"zero3.yaml:1:1: notice: a launcher file of Accelerate; its keys without meaning here: "
            "compute_environment, debug, downcast_bf16 (for TPUs only), machine_rank (set by the "
            "launcher), main_training_function, rdzv_backend (set by the launcher), same_network, "
            "tpu_env (for TPUs only), tpu_use_cluster (for TPUs only), tpu_use_sudo (for TPUs "
            "only), deepspeed_config.deepspeed_multinode_launcher (set by the launcher), "
            "deepspeed_config.zero3_init_flag (ranks read their own parts of the weights)"});
  CHECK(problems_of("c.yaml",
                    kHead + "deepspeed_config: {zero_stage: 1, zero_stagee: 1}\nnproc: 2") ==
        Lines{"c.yaml:2:35: error: deepspeed_config.zero_stagee: unknown key",
              "c.yaml:3:1: error: nproc: unknown key (did you mean \"parallel.data\"?)"});
}

TEST_CASE("the DeepSpeed config that an Accelerate file names is read with it") {
  const Config config = values_in("names_a_file.yaml");
  CHECK(config.zero.stage == 2);
  CHECK(config.train_micro_batch_size_per_gpu == 3);
  CHECK(config.fp16.enabled);
  CHECK(config.fp16.initial_scale_power == 12);
  CHECK_FALSE(config.bf16.enabled);
  CHECK(config.origins.is_written("bf16.enabled"));  // not decided by the hardware
  CHECK(config.parallel.data == 2);
  CHECK(
      values_in("names_a_file.yaml", {"parallel.data=4", "zero_optimization.stage=1"}).zero.stage ==
      1);
}

TEST_CASE("an Accelerate file and the config it names must agree") {
  const std::string named =
      kHead + "deepspeed_config:\n  deepspeed_config_file: " + kFolder + "ds_auto.json\n";
  CHECK(problems_of("c.yaml", named + "  zero_stage: 3\n") ==
        Lines{"c.yaml:4:15: error: deepspeed_config.zero_stage: set together with "
              "deepspeed_config_file\n"
              "  remedy: write zero_optimization.stage in that file, as Accelerate asks"});
  const Lines missing =
      problems_of("c.yaml", kHead + "deepspeed_config: {deepspeed_config_file: no/such.json}");
  CHECK(
      missing ==
      Lines{
          "c.yaml:2:43: error: deepspeed_config_file: no/such.json is neither in the working "
          "directory nor in this file's folder\n"
          "  remedy: correct the path, or pass that DeepSpeed config with --config instead of this "
          "file"});
  const Lines contradiction = problem_texts(load_config({kFolder + "contradiction.yaml"}).problems);
  REQUIRE(contradiction.size() == 1);
  CHECK(contradiction[0] ==
        kFolder +
            "contradiction.yaml:4:18: error: mixed_precision fp16 contradicts bf16.enabled true (" +
            kFolder +
            "ds_bf16.json:1:22)\n  remedy: keep one of the two, or write \"auto\" in that file");
}

TEST_CASE("plain data parallelism of Accelerate is stage 0, and ftrun's sections may be added") {
  const Config config = values_in("multi_gpu.yaml");
  CHECK(config.zero.stage == 0);
  CHECK(config.parallel.data == 2);
  CHECK(config.model.path == "models/tiny");
  CHECK_FALSE(config.bf16.enabled);
  CHECK(config_of(kHead + "deepspeed_config: {}").zero.stage == 2);
  CHECK(config_of("distributed_type: 'NO'\nuse_cpu: true").device == DeviceKind::kCpu);
}

TEST_CASE("num_processes of an Accelerate file includes the tensor ranks") {
  const auto mesh = [](const std::string& text) { return mesh_text(config_of(text).parallel); };
  const std::string sizes =
      "parallelism_config: {parallelism_config_tp_size: 2, "
      "parallelism_config_cp_size: 1, parallelism_config_dp_shard_size: 2}\n";
  CHECK(mesh("distributed_type: MULTI_GPU\nnum_processes: 8\n" + sizes) == "data 4 × tensor 2");
  CHECK(mesh("distributed_type: TP\ntp_config: {tp_size: 4}\nnum_processes: 4") ==
        "data 1 × tensor 4");
  CHECK(mesh(kHead + "num_processes: 8\nparallel: {tensor: 4}") == "data 2 × tensor 4");
  CHECK(config_of(kHead +
                  "num_processes: 8\nparallelism_config: {parallelism_config_tp_size: 2, "
                  "parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2}")
            .parallel.data_replicate == 2);
  const Config named = values_in("autotp.yaml");
  CHECK(named.tensor_parallel.autotp_size == 2);
  CHECK(named.parallel.data == 2);
  CHECK(count_ranks(read_launcher_file("autotp.yaml"), {}, {}).ranks == 4);
  CHECK(
      problems_of(
          "c.yaml",
          kHead + "num_processes: 6\nparallelism_config: {parallelism_config_tp_size: 4}") ==
      Lines{
          "c.yaml:2:16: error: num_processes 6 cannot be divided by tensor 4\n"
          "  remedy: write a number that can be divided: it counts all ranks, and the quotient is "
          "the number of data-parallel ranks"});
  CHECK(
      problems_of("c.yaml", "distributed_type: MULTI_GPU\n" + sizes) ==
      Lines{"c.yaml:2:84: notice: a launcher file of Accelerate; its keys without meaning here: "
            "parallelism_config.parallelism_config_dp_shard_size (it follows from num_processes)"});
  CHECK(problems_of("c.yaml", kHead + "parallelism_config: {tp_size: 2}") ==
        Lines{"c.yaml:2:22: error: parallelism_config.tp_size: unknown key"});
}

TEST_CASE("the launcher gives the ranks of several machines") {
  const std::string text =
      kHead + "deepspeed_config: {zero_stage: 1}\nnum_machines: 4\nnum_processes: 16";
  CHECK(
      problems_of("c.yaml", text) ==
      Lines{
          "c.yaml:3:15: notice: num_machines 4: start ftrun on each of them with torchrun, srun or "
          "mpirun, 16 ranks in all"});
  CHECK(config_of(text).parallel.data == 0);
}

TEST_CASE("a feature of Accelerate that ftrun lacks is refused with the setting to write instead") {
  CHECK(problems_in("fsdp.yaml") ==
        Lines{"fsdp.yaml:2:19: error: distributed_type FSDP: an fsdp_config is not read; ftrun "
              "shards with ZeRO instead\n  remedy: write these keys instead: zero_optimization: "
              "{stage: 3, offload_param: {device: cpu}, offload_optimizer: {device: cpu}}; bf16: "
              "{enabled: true}; recompute: full; parallel: {data: 8, data_replicate: 2}"});
  CHECK(
      problems_of("c.yaml",
                  "distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: false}") ==
      Lines{
          "c.yaml:1:19: error: distributed_type FSDP: an fsdp_config is not read; ftrun shards "
          "with ZeRO instead\n  remedy: write these keys instead: zero_optimization: {stage: 2}"});
  CHECK(problems_of("c.yaml",
                    "distributed_type: FSDP\nparallelism_config: {parallelism_config_tp_size: 2}\n"
                    "num_processes: 8") ==
        Lines{"c.yaml:1:19: error: distributed_type FSDP: an fsdp_config is not read; ftrun shards "
              "with ZeRO instead\n  remedy: write these keys instead: zero_optimization: {stage: "
              "3}; parallel: {data: 4, tensor: 2}"});
  CHECK(
      problems_of(
          "c.yaml",
          "distributed_type: MEGATRON_LM\nmixed_precision: bf16\nnum_processes: 16\n"
          "megatron_lm_config:\n  megatron_lm_tp_degree: 4\n  megatron_lm_pp_degree: 2\n"
          "  megatron_lm_num_micro_batches: 3\n  megatron_lm_sequence_parallelism: false\n"
          "  megatron_lm_recompute_activations: true\n  megatron_lm_gradient_clipping: 1.0\n"
          "  megatron_lm_use_distributed_optimizer: true\n") ==
      Lines{"c.yaml:1:19: error: distributed_type MEGATRON_LM: a megatron_lm_config is not read\n"
            "  remedy: write these keys instead: parallel: {data: 2, tensor: 4, pipeline: 2, "
            "sequence: "
            "false}; zero_optimization: {stage: 1}; recompute: selective; gradient_clipping: 1.0; "
            "gradient_accumulation_steps: 3; bf16: {enabled: true}"});
  CHECK(problems_of("c.yaml", "distributed_type: MEGATRON_LM") ==
        Lines{"c.yaml:1:19: error: distributed_type MEGATRON_LM: ftrun has no such backend\n"
              "  remedy: write a config with model.path, data.train and DeepSpeed's keys"});
  CHECK(problems_of("c.yaml", kHead + "mixed_precision: fp8") ==
        Lines{"c.yaml:2:18: error: mixed_precision: ftrun has no fp8\n  remedy: use bf16"});
}

}  // namespace ftrun

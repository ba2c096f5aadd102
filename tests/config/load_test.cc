#include "config/load.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/secret.h"
#include "config/config_node.h"
#include "config/schema.h"
#include "config/suggest.h"
#include "helpers.h"
#include "source_paths.h"
#include "temporary_folder.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::string write_temporary_file(const std::string& name, const std::string& text) {
  const auto folder = std::filesystem::path(testing::binary_dir()) / "test-config";
  std::filesystem::create_directories(folder);
  const std::string path = folder / name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace

TEST_CASE("a config is read alike from JSON and YAML, by extension or content") {
  const std::string json = "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}}";
  const std::string yaml = "train_batch_size: 8\nzero_optimization:\n  stage: 2\n";
  const Config a = config_of(json, {}, "a.json");
  REQUIRE(a.train_batch_size == 8);
  REQUIRE(a.zero.stage == 2);
  REQUIRE(a == config_of(yaml, {}, "a.yaml"));
  REQUIRE(a == config_of("\n# hello\n" + json, {}, "config"));
  REQUIRE(a == config_of("# hello\n" + yaml, {}, "config"));
}

TEST_CASE("later files override earlier ones and --set overrides all files, key by key") {
  const std::string first = write_temporary_file("first.json", R"({"train_batch_size": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}})");
  const std::string second =
      write_temporary_file("second.yaml", "optimizer:\n  params:\n    lr: 1e-4\n");
  const LoadResult loaded = load_config({first, second}, {"train.steps=100", "data.train=[a, b]",
                                                          "optimizer.params.weight_decay=0.1"});
  REQUIRE(problem_texts(loaded.problems) == Lines{});
  const Config config = with_defaults(loaded.written);
  REQUIRE(config.optimizer.lr == 1e-4);
  REQUIRE(config.optimizer.betas[1] == 0.95);
  REQUIRE(config.optimizer.weight_decay == 0.1);
  REQUIRE(config.train.steps == 100);
  REQUIRE(config.data.train == Lines{"a", "b"});
  REQUIRE(to_text(loaded.written.origins.position("optimizer.params.lr")) == second + ":3:9");
  REQUIRE(to_text(loaded.written.origins.position("train.steps")) == "--set train.steps=100");
}

TEST_CASE(
    "a config that is not UTF-8 is one error with its position, from files and overrides alike") {
  const std::string remedy = "if the byte belongs to the name of a file, rename that file";
  for (const std::string& bad :
       Lines{"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    REQUIRE(problems_of("c.yaml", "data:\n  train: \xc3\xa9" + bad +
                                      " # and more\nmodel: {path: " + bad + "}\n") ==
            Lines{"c.yaml:2:11: error: this byte is not UTF-8\n  remedy: save the file "
                  "in UTF-8; " +
                  remedy});
    REQUIRE(problems_of("c.json", "{\"model\": {\"path\": \"m" + bad + "\"}}") ==
            Lines{"c.json:1:22: error: this byte is not UTF-8\n  remedy: save the file "
                  "in UTF-8; " +
                  remedy});
  }
  REQUIRE(
      problems_of("c.yaml", "", {"model.path=m\xff"}) ==
      Lines{"--set model.path=m\\xFF: error: byte 13 is not UTF-8\n  remedy: write it in UTF-8; " +
            remedy});
  REQUIRE(problems_of("c.yaml", "", {"\x80"}).size() == 1);
  const std::string good = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  REQUIRE(config_of("model: {path: " + good + "}\n", {"output_dir=" + good}).model.path == good);
}

TEST_CASE("a file that cannot be read is a problem like any other") {
  const LoadResult loaded = load_config({"/nowhere/c.yaml"}, {"train.stpes=1"});
  REQUIRE(loaded.problems.size() == 2);
  REQUIRE(to_text(loaded.problems[0]).starts_with("/nowhere/c.yaml: error: "));
  REQUIRE(to_text(loaded.problems[1]) ==
          "--set train.stpes=1: error: train.stpes: unknown key (did you mean \"steps\"?)");
  REQUIRE(problems_of("c.yaml", std::string("a\0b", 3)) ==
          Lines{"c.yaml: error: the file is binary, not a config"});
  REQUIRE(problems_of("c.yaml", std::string("\xFF\xFE\x61\0:\0", 6)) ==
          Lines{"c.yaml: error: the file is UTF-16 (little-endian), expected UTF-8\n  remedy: save "
                "the file "
                "in UTF-8"});
  REQUIRE(problems_of("c.yaml", "[1, 2]") ==
          Lines{"c.yaml:1:1: error: expected a config with keys, found a list of 2 entries"});
  REQUIRE(problems_of("c.yaml", "# nothing\n") == Lines{});
}

TEST_CASE("anything but a file of a config's size is refused before it is read") {
  const std::string huge = write_temporary_file("huge.yaml", "");
  std::filesystem::resize_file(huge, uintmax_t{1} << 40);
  const auto refusal = [](const std::string& path) {
    return problem_texts(load_config({path}).problems);
  };
  REQUIRE(refusal(huge) == Lines{cat(huge, ": error: ", huge,
                                     ": is 1.00 TiB, larger than the limit of 4.00 MiB\n"
                                     "  remedy: check that the path names the right file")});
  std::filesystem::remove(huge);
  const std::string pipe = write_temporary_file("pipe", "");
  std::filesystem::remove(pipe);
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string folder = std::filesystem::path(pipe).parent_path();
  for (const std::string& path : {pipe, folder, std::string("/dev/zero")})
    REQUIRE(refusal(path) == Lines{cat(path, ": error: ", path,
                                       ": cannot be read: not a regular file\n"
                                       "  remedy: check the path and the permissions")});
  std::filesystem::remove(pipe);
}

TEST_CASE("no message about a config contains the value of a secret") {
  const std::string secrets =
      "train: {steps: {hf_token: [hunter2]}, api_key: hunter2}\n"
      "wandb: {enabled: false, api_key: hunter2}\n"
      "optimizer: {type: AdamW, params: {lr: 1, password: hunter2}}\n"
      "auth: hunter2\nsecret: {deep: hunter2}\nmodel: {path: m, access_token: 12345hunter2}\n";
  for (const Lines& overrides :
       {Lines{}, Lines{"wandb.api_key=hunter2"}, Lines{"hf_token=[hunter2"},
        Lines{"api_key:hunter2"}, Lines{"a.password=hunter2=x"},
        Lines{"zero_optimization.secret.stage=hunter2"}, Lines{"train.steps={token: hunter2}"}})
    for (const std::string& line : problems_of("c.yaml", secrets, overrides))
      REQUIRE(line.find("hunter2") == std::string::npos);
  REQUIRE(problem_texts(load_config({}, {"wandb.api_keys=1", "train.api_key=hunter2"}).problems)
              .back() ==
          "--set train.api_key=(hidden): error: train.api_key: unknown key (did you mean "
          "\"comet.api_key\"?)");
  // A message names a section that was given whole by its key alone, even if it is not well formed.
  for (const std::string value :
       {"={api_key: hunter2}", "={api_key: hunter2", "=[{api_key: hunter2}]",
        ": {api_key: hunter2}", "=api_key: hunter2", "=\n  api_key: hunter2"}) {
    const Lines problems = problem_texts(load_config({}, {"comet" + value}).problems);
    INFO(value);
    REQUIRE(problems.size() >= 1);
    for (const std::string& line : problems) REQUIRE(line.find("hunter2") == std::string::npos);
    REQUIRE(problems[0].starts_with(value[0] == '=' ? "--set comet=…" : "--set comet…"));
  }
  // A secret stands in the place of a value of another kind.
  ConfigNode root = ConfigNode::of_map({});
  root.entries.push_back({"token", {}, ConfigNode::of_text({}, "hunter2"), ""});
  mark_secrets(root);
  REQUIRE(value_text(root.entries[0].value) == "(hidden)");
  REQUIRE(value_text(root) == "a section");
}

TEST_CASE("no key that config.yaml and run.json hold is a secret's") {
  for (const Field& field : Schema::get().fields())
    if (field.load) {
      INFO(field.path());
      REQUIRE_FALSE(is_secret_name(field.name));
    }
}

TEST_CASE("an existing path is not read as a list or map, whatever it begins with") {
  namespace fs = std::filesystem;
  const fs::path before = fs::current_path();
  const testing::TemporaryFolder folder;
  fs::create_directories(folder / "[v2] run");
  fs::create_directories(folder / "{x}");
  fs::current_path(folder.path());
  const LoadResult loaded =
      load_config({}, {"output_dir=[v2] run/out", "model.path={x}", "data.train=[a, b]"});
  fs::current_path(before);
  REQUIRE(problem_texts(loaded.problems) == Lines{});
  REQUIRE(loaded.written.get<std::string>("output_dir") == "[v2] run/out");
  REQUIRE(loaded.written.get<std::string>("model.path") == "{x}");
  REQUIRE(loaded.written.get<Lines>("data.train") == Lines{"a", "b"});
}

TEST_CASE("an endless override is refused, and its text is shortened in the message") {
  std::string deep = "a";
  for (int i = 0; i < 50'000; ++i) deep += ".a";
  const Lines problems = problem_texts(load_config({}, {deep + "=1"}).problems);
  REQUIRE(problems ==
          Lines{cat("--set ", deep.substr(0, 200), "…: error: nested deeper than 64 levels")});
}

TEST_CASE("an override that is not section.key=value is refused") {
  const Lines expected{
      "--set steps: error: expected section.key=value\n"
      "  remedy: write for example --set train.steps=100"};
  REQUIRE(problem_texts(load_config({}, {"steps"}).problems) == expected);
  REQUIRE(problem_texts(load_config({}, {"train..steps=1"}).problems) ==
          Lines{"--set train..steps=1: error: expected section.key=value\n"
                "  remedy: write for example --set train.steps=100"});
  REQUIRE(problem_texts(load_config({}, {"data.train=[a"}).problems).size() >= 1);
}

TEST_CASE("all problems of a config are reported at once, by position") {
  REQUIRE(problems_of("c.yaml", R"(train_batch_sise: 8
zero_optimization:
  stag: 2
  stage: 4
  overlap_comm: maybe
  reduce_bucket_size: 500000000.5
optimizer:
  type: AdamX
  params: {lr: fast, momentum: 0.9}
fp16: 3
data: {packing: document, sequence_length: 0}
)") == Lines{
           "c.yaml:1:1: error: train_batch_sise: unknown key (did you mean \"train_batch_size\"?)",
           "c.yaml:3:3: error: zero_optimization.stag: unknown key (did you mean \"stage\"?)",
           "c.yaml:4:10: error: zero_optimization.stage: expected a whole number from 0 to 3 "
           "or one of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD, found 4",
           "c.yaml:5:17: error: zero_optimization.overlap_comm: expected true or false, found "
           "\"maybe\"",
           "c.yaml:6:23: error: zero_optimization.reduce_bucket_size: expected a whole number of "
           "at least 0, found 500000000.5",
           "c.yaml:8:9: error: optimizer.type: expected one of AdamW, Adam, SGD, Lion, Adagrad, "
           "AdamW8bit, Lamb, Muon, OneBitAdam, OneBitLamb, ZeroOneAdam, MuAdam, MuAdamW, MuSGD, "
           "found \"AdamX\" (did you mean \"AdamW\"?)",
           "c.yaml:9:16: error: optimizer.params.lr: expected a number of at least 0, found "
           "\"fast\"",
           "c.yaml:9:22: error: optimizer.params.momentum: AdamW has no such parameter\n"
           "  remedy: use one of its parameters: lr, betas, eps, weight_decay, bias_correction, "
           "adam_w_mode, amsgrad, torch_adam, fp32_optimizer_states, set_grad_none, max_grad_norm",
           "c.yaml:10:7: error: fp16: expected a section of keys, found 3",
           "c.yaml:11:17: error: data.packing: expected one of concat, documents, none, found "
           "\"document\" (did you mean \"documents\"?)",
           "c.yaml:11:44: error: data.sequence_length: expected a whole number of at least 1, "
           "found 0"});
}

TEST_CASE("a key in the wrong section is reported with its right place") {
  REQUIRE(problems_of("c.yaml", "stage: 2\nlr: 1\nbatch_size: 4\nsteps: 3\nnonsense: 1\n") ==
          Lines{"c.yaml:1:1: error: stage: unknown key (did you mean \"zero_optimization.stage\"?)",
                "c.yaml:2:1: error: lr: unknown key (did you mean \"optimizer.params.lr\"?)",
                "c.yaml:3:1: error: batch_size: unknown key (did you mean \"train_batch_size\"?)",
                "c.yaml:4:1: error: steps: unknown key (did you mean \"train.steps\"?)",
                "c.yaml:5:1: error: nonsense: unknown key\n"
                "  remedy: list all keys with: ftrun schema --markdown"});
  REQUIRE(problems_of("c.yaml", "zero_optimization: {train.steps: 3}") ==
          Lines{"c.yaml:1:21: error: zero_optimization.train.steps: unknown key\n"
                "  remedy: list all keys with: ftrun schema --markdown"});
  REQUIRE(problems_of("c.yaml", "train: {trace: {nonsense: 3}}") ==
          Lines{"c.yaml:1:17: error: train.trace.nonsense: unknown key\n"
                "  remedy: use one of the keys of train.trace: steps, ranks"});
}

TEST_CASE("a key of another program is reported with ftrun's key") {
  REQUIRE(
      problems_of("c.yaml",
                  "data: {seq_length: 8}\ntrain: {lr: 1, max_steps: 3}\n"
                  "micro-batch-size: 2\nparallel: {tp: 2}\n") ==
      Lines{"c.yaml:1:8: error: data.seq_length: unknown key (did you mean \"sequence_length\"?)",
            "c.yaml:2:9: error: train.lr: unknown key (did you mean \"learning_rate\"?)",
            "c.yaml:2:16: error: train.max_steps: unknown key (did you mean \"steps\"?)",
            "c.yaml:3:1: error: micro-batch-size: unknown key (did you mean "
            "\"train_micro_batch_size_per_gpu\"?)",
            "c.yaml:4:12: error: parallel.tp: unknown key (did you mean \"tensor\"?)"});
}

TEST_CASE("a similar key of the same section is suggested before the same key of another one") {
  REQUIRE(problems_of("c.yaml",
                      "optimizer: {type: AdamW, params: {learning_rate: 1}}\n"
                      "scheduler: {type: WarmupLR, params: {warmup_steps: 5}}\n"
                      "learning_rate: 1\n") ==
          Lines{"c.yaml:1:35: error: optimizer.params.learning_rate: unknown key (did you mean "
                "\"lr\"?)",
                "c.yaml:2:38: error: scheduler.params.warmup_steps: unknown key (did you mean "
                "\"warmup_num_steps\"?)",
                "c.yaml:3:1: error: learning_rate: unknown key (did you mean "
                "\"train.learning_rate\"?)"});
}

TEST_CASE("a plain value where a section is expected is refused with an example of the section") {
  REQUIRE(problems_of("c.yaml",
                      "bf16: true\nfp16: false\nmodel: m\n"
                      "zero_optimization: {stage: 1, offload_optimizer: cpu}\n") ==
          Lines{"c.yaml:1:7: error: bf16: expected a section of keys, found true\n"
                "  remedy: write bf16: {enabled: true}",
                "c.yaml:2:7: error: fp16: expected a section of keys, found false\n"
                "  remedy: write fp16: {enabled: false}",
                "c.yaml:3:8: error: model: expected a section of keys, found \"m\"\n"
                "  remedy: write model: {path: m}",
                "c.yaml:4:50: error: zero_optimization.offload_optimizer: expected a section of "
                "keys, found \"cpu\"\n  remedy: write offload_optimizer: {device: cpu}"});
}

TEST_CASE("every known key of another program is mapped to a key that exists") {
  const Schema& schema = Schema::get();
  for (const char* word :
       {"seq_len", "global_batch_size", "max_steps", "num_epochs", "clip_grad", "model_path",
        "save_steps", "save_total_limit", "eval_steps", "logging_steps", "gradient_checkpointing",
        "cp", "base_model", "lora", "rank", "alpha", "lora_target"}) {
    const std::string text = key_suggestion("", word, schema.names_in(""));
    const size_t start = text.find('"') + 1;
    const std::string path = text.substr(start, text.rfind('"') - start);
    const size_t dot = path.rfind('.');
    INFO(word << " -> " << path);
    const Field* field = schema.find(dot == std::string::npos ? "" : path.substr(0, dot),
                                     dot == std::string::npos ? path : path.substr(dot + 1));
    REQUIRE((field != nullptr || schema.find_section(path) != nullptr));
  }
}

TEST_CASE("whole floats, numbers in quotes and words for true are read, the latter with a notice") {
  const std::string text = R"({"train_batch_size": "8", "gradient_clipping": 1,
 "zero_optimization": {"stage": 2.0, "reduce_bucket_size": 5e8,
                       "allgather_bucket_size": "500000000",
                       "overlap_comm": "True", "max_live_parameters": 1e14,
                       "sub_group_size": "5e8"},
 "fp16": {"enabled": 1, "hysteresis": true}, "steps_per_print": 2e16})";
  REQUIRE(
      problems_of("c.json", text) ==
      Lines{"c.json:1:22: notice: train_batch_size: \"8\" is read as the number 8",
            "c.json:3:49: notice: zero_optimization.allgather_bucket_size: \"500000000\" is read "
            "as the number 500000000",
            "c.json:4:40: notice: zero_optimization.overlap_comm: \"True\" is read as true",
            "c.json:5:24: notice: zero_optimization: accepted without effect in ftrun: "
            "sub_group_size",
            "c.json:5:42: notice: zero_optimization.sub_group_size: \"5e8\" is read as the "
            "number 5e8",
            "c.json:6:22: notice: fp16.enabled: 1 is read as true",
            "c.json:6:39: notice: fp16.hysteresis: true is read as 1"});
  const Config c = config_of(text, {}, "c.json");
  REQUIRE(c.zero.reduce_bucket_size == 500'000'000);
  REQUIRE(c.zero.max_live_parameters == 100'000'000'000'000);
  REQUIRE(c.zero.sub_group_size == 500'000'000);
  REQUIRE(c.steps_per_print == 20'000'000'000'000'000);
  REQUIRE(c.fp16.enabled);
  REQUIRE(config_of("steps_per_print: .inf").steps_per_print == 0);
  REQUIRE(config_of("{\"steps_per_print\": Infinity}", {}, "c.json").steps_per_print == 0);
}

TEST_CASE("numbers that their key cannot represent are refused") {
  REQUIRE(
      problems_of("c.json", R"({"zero_optimization": {"reduce_bucket_size": 1e20},
 "fp16": {"loss_scale": true}, "gradient_clipping": NaN})") ==
      Lines{"c.json:1:46: error: zero_optimization.reduce_bucket_size: expected a whole number of "
            "at least 0, found 1e20 (it does not fit into 64 bits)",
            "c.json:2:25: error: fp16.loss_scale: expected a number of at least 0, found true",
            "c.json:2:53: error: gradient_clipping: expected a number of at least 0, found NaN"});
}

TEST_CASE("null counts as an unwritten key where DeepSpeed allows it") {
  REQUIRE(problems_of("c.json", R"({"bf16": null, "gradient_accumulation_steps": null,
 "zero_optimization": {"offload_param": null, "overlap_comm": null}, "model": {"path": null}})") ==
          Lines{});
  REQUIRE(problems_of("c.json", R"({"fp16": null, "zero_optimization": {"stage": null}})") ==
          Lines{"c.json:1:10: error: fp16: expected a section of keys, found null",
                "c.json:1:47: error: zero_optimization.stage: expected a whole number from 0 to 3 "
                "or one of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD, found null"});
}

TEST_CASE("a log level has the name that it has in DeepSpeed, too") {
  const auto level = [](const std::string& text) { return config_of(text).log_level; };
  CHECK(level("{}") == LogLevel::kInfo);
  CHECK(level("log_level: \"\"") == LogLevel::kInfo);
  CHECK(level("log_level: debug") == LogLevel::kDebug);
  CHECK(level("log_level: notice") == LogLevel::kNotice);
  CHECK(level("log_level: warning") == LogLevel::kWarning);
  CHECK(level("log_level: warn") == LogLevel::kWarning);
  CHECK(level("log_level: error") == LogLevel::kError);
  CHECK(level("log_level: critical") == LogLevel::kError);
  for (const char* other : {"loud", "WARN"})
    CHECK(problems_of("c.yaml", cat("log_level: ", other, "\n")) ==
          Lines{cat("c.yaml:1:12: error: log_level: expected one of debug, info, notice, warning, "
                    "error, found \"",
                    other, "\"")});
}

TEST_CASE("old spellings mean what they meant, and two spellings of one key are an error") {
  const Config c = config_of(R"({"bfloat16": {"enabled": true}, "zero_optimization": {"stage": 3,
    "cpu_offload": true, "cpu_offload_params": true, "stage3_prefetch_bucket_size": 7,
    "stage3_gather_fp16_weights_on_model_save": true},
    "optimizer": {"type": "adam", "params": {"max_grad_norm": 0.5}}})",
                             {}, "c.json");
  REQUIRE(c.bf16.enabled);
  REQUIRE(c.zero.offload_optimizer.device == OffloadDevice::kCpu);
  REQUIRE(c.zero.offload_param.device == OffloadDevice::kCpu);
  REQUIRE(c.zero.prefetch_bucket_size == 7);
  REQUIRE(c.zero.gather_16bit_weights_on_model_save);
  REQUIRE(c.optimizer.type == OptimizerType::kAdam);
  REQUIRE(c.gradient_clipping == 0.5);
  REQUIRE(config_of("zero_optimization: true\nallgather_size: 10\n").zero.allgather_bucket_size ==
          10);
  REQUIRE(config_of("zero_optimization: true").zero.stage == 1);
  REQUIRE(
      problems_of("c.json", R"({"zero_optimization": {"prefetch_bucket_size": 1,
 "stage3_prefetch_bucket_size": 2, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}},
 "gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 2.0}}})") ==
      Lines{"c.json:2:2: error: zero_optimization.stage3_prefetch_bucket_size: set together with "
            "\"prefetch_bucket_size\" (line 1), which is the same key\n"
            "  remedy: keep one of the two",
            "c.json:2:36: notice: zero_optimization.cpu_offload: deprecated; offload_optimizer: "
            "{device: cpu} is its new form",
            "c.json:2:36: error: zero_optimization.cpu_offload: set together with "
            "offload_optimizer, which means the same\n  remedy: remove cpu_offload",
            "c.json:3:69: error: optimizer.params.max_grad_norm: 2.0 contradicts "
            "gradient_clipping: 1.0 (line 3)\n  remedy: keep gradient_clipping"});
}

TEST_CASE("keys of older programs and comments are accepted with a notice") {
  REQUIRE(
      problems_of("c.json", R"({"comment": "x", "fp16": {"opt_level": "O2"},
 "compile": {"disable": false, "deepcompile": true}, "cuda_visible_devices": 0})") ==
      Lines{
          "c.json:1:2: notice: comment: ignored: a comment",
          "c.json:1:27: notice: fp16.opt_level: ignored: an old key that DeepSpeed no longer "
          "reads",
          "c.json:2:14: notice: compile.disable: ignored: an old key that DeepSpeed no longer "
          "reads",
          "c.json:2:32: notice: compile: accepted without effect in ftrun: deepcompile",
          "c.json:2:54: notice: cuda_visible_devices: ignored: DeepSpeed does not read this key"});
}

TEST_CASE("every legacy key is accepted wherever it is written") {
  for (const LegacyKey& key : Schema::get().legacy()) {
    if (key.name == "bfloat16" || key.name.starts_with("cpu_offload")) continue;
    const std::string text = key.section.empty()
                                 ? cat("{\"", key.name, "\": 0}")
                                 : cat("{\"", key.section, "\": {\"", key.name, "\": 0}}");
    INFO(text);
    REQUIRE(load_config_text("c.json", text).ok());
  }
}

TEST_CASE("configs of other programs are recognized and told what to pass") {
  const auto first = [](const std::string& text) { return problems_of("c.yaml", text).front(); };
  const std::string list =
      "\n  remedy: write a config with model.path, data.train and DeepSpeed's "
      "keys; docs/config.md lists all";
  REQUIRE(first("base_model: x\ndatasets: []\n") ==
          "c.yaml:1:1: error: this is a config of axolotl (key \"base_model\")" + list);
  REQUIRE(first("stage: sft\nfinetuning_type: lora\n") ==
          "c.yaml:2:1: error: this is a config of LLaMA-Factory (key \"finetuning_type\")" + list);
  REQUIRE(first("model:\n  _component_: torchtune.models.llama3\n") ==
          "c.yaml:1:1: error: this is a recipe config of torchtune" + list);
  REQUIRE(first("per_device_train_batch_size: 4\n") ==
          "c.yaml:1:1: error: this is a file of Hugging Face TrainingArguments (key "
          "\"per_device_train_batch_size\")" +
              list);
}

}  // namespace ftrun

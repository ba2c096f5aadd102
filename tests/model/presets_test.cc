#include "model/presets.h"

#include <cmath>
#include <map>
#include <string>

#include "base/error.h"
#include "model/families.h"
#include "model/size.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

int64_t parameters_of(const ModelPreset& preset) {
  const ModelConfig config = preset_config(preset, std::string(preset.name));
  return count_parameters(build_model(config, {}, GraphMode::kEvaluate)).total;
}

TEST_CASE("presets have the numbers of parameters that their models are published with") {
  // The numbers are the Hub's counts of the stored tensors; tied matrices count once.
  const std::map<std::string, int64_t> published{{"smollm2-135m", 134'515'008},
                                                 {"llama-2-7b", 6'738'415'616},
                                                 {"llama-2-13b", 13'015'864'320},
                                                 {"llama-2-70b", 68'976'648'192},
                                                 {"llama-3-8b", 8'030'261'248},
                                                 {"llama-3.1-70b", 70'553'706'496},
                                                 {"llama-3.1-405b", 405'853'388'800},
                                                 {"llama-3.2-1b", 1'235'814'400},
                                                 {"llama-3.2-3b", 3'212'749'824},
                                                 {"mistral-7b", 7'241'732'096},
                                                 {"qwen2.5-0.5b", 494'032'768},
                                                 {"qwen2.5-1.5b", 1'543'714'304},
                                                 {"qwen2.5-7b", 7'615'616'512},
                                                 {"qwen2.5-14b", 14'770'033'664},
                                                 {"qwen2.5-32b", 32'763'876'352},
                                                 {"qwen2.5-72b", 72'706'203'648},
                                                 {"qwen3-0.6b", 596'049'920},
                                                 {"qwen3-8b", 8'190'735'360},
                                                 {"qwen3-14b", 14'768'307'200},
                                                 {"qwen3-32b", 32'762'123'264},
                                                 {"gpt2", 124'439'808},
                                                 {"gpt2-medium", 354'823'168},
                                                 {"gpt2-large", 774'030'080},
                                                 {"gpt2-xl", 1'557'611'200},
                                                 {"opt-1.3b", 1'315'758'080},
                                                 {"opt-6.7b", 6'658'473'984},
                                                 {"smollm2-360m", 361'821'120},
                                                 {"smollm2-1.7b", 1'711'376'384},
                                                 {"llama-3-70b", 70'553'706'496},
                                                 {"llama-3.1-8b", 8'030'261'248},
                                                 {"qwen2.5-3b", 3'085'938'688},
                                                 {"qwen3-1.7b", 1'720'574'976},
                                                 {"qwen3-4b", 4'022'468'096}};
  for (const auto& [name, count] : published) {
    INFO(name);
    CHECK(parameters_of(find_preset(name)) == count);
  }
  // The others are close to the size in their names.
  for (const ModelPreset& preset : model_presets()) {
    const std::string name(preset.name);
    if (published.contains(name)) continue;
    const std::string size = name.substr(name.rfind('-') + 1);
    INFO(name);
    const auto stated = static_cast<double>(parse_parameter_count(size));
    CHECK(std::abs(static_cast<double>(parameters_of(preset)) / stated - 1) < 0.05);
  }
}

TEST_CASE(
    "a preset of any size has about that many parameters, and a shape that ranks can divide") {
  int64_t last = 0;
  for (const char* text : {"50M", "350m", "1B", "1.3B", "3B", "7B", "13B", "30B", "70B", "175B",
                           "405b", "1000B", "10000B"}) {
    INFO(text);
    const int64_t requested = parse_parameter_count(text);
    const ModelPreset preset = preset_of_size(requested);
    const double off =
        static_cast<double>(parameters_of(preset)) / static_cast<double>(requested) - 1;
    CHECK(std::abs(off) < 0.005);
    CHECK(preset.query_heads % 8 == 0);
    CHECK(preset.layers % 4 == 0);
    CHECK(preset.feed_forward % 64 == 0);
    CHECK(preset.hidden == preset.query_heads * preset.head_size);
    CHECK(preset.hidden * preset.layers >= last);
    last = preset.hidden * preset.layers;
  }
  // These must have Llama 2's depth and width.
  for (const char* name : {"7", "13"}) {
    const ModelPreset like = preset_of_size(parse_parameter_count(cat(name, "B")));
    const ModelPreset& llama = find_preset(cat("llama-2-", name, "b"));
    CHECK(like.hidden == llama.hidden);
    CHECK(like.layers == llama.layers);
  }
}

TEST_CASE("an unknown preset and a number that is no size are refused with the known presets") {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return cat(static_cast<int>(error.code()), " ", error.message(), " | ", error.remedy());
    }
    return "accepted";
  };
  const std::string unknown = refusal([] { find_preset("llama-3.1-8"); });
  CHECK(
      unknown.starts_with("2 \"llama-3.1-8\" is neither a config.json, nor a folder that holds "
                          "one, nor a known model (did you mean \"llama-3.1-8b\"?) | name "
                          "one of "));
  for (const char* text :
       {"", "7", "7G", "B", "-7B", "nanB", "0x10B", "infB", "49M", "10001B", "7B x"}) {
    INFO(text);
    CHECK(refusal([&] { parse_parameter_count(text); }) ==
          cat("2 --params ", text,
              ": expected a number of parameters from 50M to 10000B | give it with its unit, for "
              "example 7B, 1.3B or 350M"));
  }
}

}  // namespace
}  // namespace ftrun

#include "model/stored_names.h"

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/tensors.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

using Names = std::map<std::string, std::string>;

/// Returns the tensor names of a model of one layer.
ModelDescription model_of(bool tied) {
  ModelDescription model;
  model.family = "llama";
  model.tied = tied;
  std::vector<std::string> names{"model.embed_tokens.weight",
                                 "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"};
  if (!tied) names.emplace_back("lm_head.weight");
  for (const std::string& name : names) {
    TensorInfo tensor;
    tensor.name = name;
    tensor.shape = {2, 2};
    model.tensors.push_back(tensor);
  }
  return model;
}

TEST_CASE("tensors that are stored under the model's own names keep them", "[names]") {
  const StoredNames names = find_stored_names(
      model_of(false), {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                        "model.norm.weight", "lm_head.weight"});
  CHECK(names.stored_name_of.empty());
  CHECK(names.cause.empty());
  CHECK(stored_name_example(model_of(false), names).empty());
}

TEST_CASE("a prefix of all tensors, and wrappers anywhere, are removed", "[names]") {
  struct Spelling {
    std::string body, head;
  };
  for (const Spelling& s :
       {Spelling{"_orig_mod.model.", "_orig_mod.lm_head.weight"},
        {"module.model.", "module.lm_head.weight"},
        {"module._orig_mod.model.", "module._orig_mod.lm_head.weight"},
        {"", "lm_head.weight"},
        {"base_model.model.model.", "base_model.model.lm_head.weight"},
        {"_forward_module.module.model.", "_forward_module.module.lm_head.weight"},
        {"model.language_model.", "lm_head.weight"},
        {"language_model.model.", "language_model.lm_head.weight"},
        {"model._fsdp_wrapped_module.", "lm_head.weight"}}) {
    INFO(s.body);
    Names expected{{"model.embed_tokens.weight", s.body + "embed_tokens.weight"},
                   {"model.layers.0.self_attn.q_proj.weight",
                    s.body + "layers.0._checkpoint_wrapped_module.self_attn.q_proj.weight"},
                   {"model.norm.weight", s.body + "norm.weight"}};
    if (s.head != "lm_head.weight") expected["lm_head.weight"] = s.head;
    std::vector<std::string> stored{s.head};
    for (const auto& [name, as_stored] : expected)
      if (as_stored != s.head) stored.push_back(as_stored);
    const StoredNames names = find_stored_names(model_of(false), stored);
    CHECK(names.stored_name_of == expected);
    CHECK(names.cause.empty());
  }
}

TEST_CASE("a head's bias is found where its matrix is, under any prefix", "[names]") {
  ModelDescription model = model_of(false);
  TensorInfo bias;
  bias.name = "lm_head.bias";
  bias.shape = {2};
  model.tensors.push_back(bias);
  const std::vector<std::string> bodies{"model.embed_tokens.weight",
                                        "model.layers.0.self_attn.q_proj.weight",
                                        "model.norm.weight", "lm_head.weight", "lm_head.bias"};
  Names expected;
  std::vector<std::string> stored;
  for (const std::string& name : bodies) {
    expected[name] = "module." + name;
    stored.push_back("module." + name);
  }
  CHECK(find_stored_names(model, stored).stored_name_of == expected);
  CHECK(find_stored_names(model, bodies).stored_name_of.empty());
}

TEST_CASE("a tied matrix may be stored as the head alone, under any prefix", "[names]") {
  const std::vector<std::string> rest{"model.layers.0.self_attn.q_proj.weight",
                                      "model.norm.weight"};
  std::vector<std::string> stored = rest;
  stored.emplace_back("lm_head.weight");
  const StoredNames tied = find_stored_names(model_of(true), stored);
  CHECK(tied.stored_name_of == Names{{"model.embed_tokens.weight", "lm_head.weight"}});
  CHECK(stored_name_example(model_of(true), tied).empty());
  CHECK(find_stored_names(model_of(false), stored).stored_name_of.empty());
  stored.emplace_back("model.embed_tokens.weight");
  CHECK(find_stored_names(model_of(true), stored).stored_name_of.empty());
  const StoredNames wrapped =
      find_stored_names(model_of(true), {"_orig_mod.lm_head.weight",
                                         "_orig_mod.model.layers.0.self_attn.q_proj.weight",
                                         "_orig_mod.model.norm.weight"});
  CHECK(wrapped.stored_name_of.at("model.embed_tokens.weight") == "_orig_mod.lm_head.weight");
  CHECK(stored_name_example(model_of(false), wrapped) ==
        "\"_orig_mod.model.layers.0.self_attn.q_proj.weight\" for "
        "\"model.layers.0.self_attn.q_proj.weight\"");
}

TEST_CASE("the model's own names are used if there are other sets of tensors as well", "[names]") {
  std::vector<std::string> stored{"model.embed_tokens.weight", "model.norm.weight",
                                  "lm_head.weight"};
  for (const char* name :
       {"embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"})
    stored.push_back(std::string("ema.") + name);
  CHECK(find_stored_names(model_of(false), stored).stored_name_of.empty());
}

TEST_CASE("tensors that are stored in place of the model's are named in the error", "[names]") {
  std::vector<std::string> twice;
  for (const char* prefix : {"student.model.", "teacher.model."})
    for (const char* name :
         {"embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"})
      twice.push_back(std::string(prefix) + name);
  CHECK(find_stored_names(model_of(false), twice).cause ==
        "the folder holds the tensors 2 times, under \"student.model.\", \"teacher.model.\"");
  CHECK(find_stored_names(model_of(false), twice).remedy ==
        "save only the model that should be trained");
  CHECK(find_stored_names(model_of(false), {"h.0.attn.c_attn.weight", "wte.weight"}).cause ==
        "none of the model's tensors is there, under any prefix; the first of 2 is called "
        "\"h.0.attn.c_attn.weight\"");
  const StoredNames adapted = find_stored_names(
      model_of(false), {"base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
                        "base_model.model.model.norm.weight"});
  CHECK(adapted.cause ==
        "they are those of a model with an adapter that is not merged into it "
        "(\"base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight\")");
  CHECK(adapted.remedy ==
        "merge it and save the model again (PEFT: merge_and_unload(), then save_pretrained())");
}

TEST_CASE("a long list of problems names each once for all layers", "[names]") {
  std::vector<std::string> problems;
  for (int layer = 0; layer < 30; ++layer)
    for (const char* part : {"up_proj", "down_proj"})
      problems.push_back(cat("tensor model.layers.", layer, ".mlp.", part, ".weight is missing"));
  problems.emplace_back("tensor model.norm.weight is missing");
  CHECK(tensor_problems_text(problems) ==
        "tensor model.layers.0.mlp.up_proj.weight is missing (and in 29 more layers)\n"
        "  tensor model.layers.0.mlp.down_proj.weight is missing (and in 29 more layers)\n"
        "  tensor model.norm.weight is missing");
  std::vector<std::string> different;
  for (int i = 0; i < 30; ++i) different.push_back(cat("tensor h.", i, " is unknown"));
  CHECK(tensor_problems_text(different).ends_with("  tensor h.19 is unknown\n  and 10 more"));
  CHECK(tensor_problems_text(different, 2) ==
        "tensor h.0 is unknown\n  tensor h.1 is unknown\n  and 28 more");
  problems.resize(20);
  CHECK(tensor_problems_text(problems).ends_with(
      "  tensor model.layers.9.mlp.down_proj.weight is missing"));
}

}  // namespace
}  // namespace ftrun

// These tests check the states of a config between its sources and the final config:
// ConfigSourceTree and DesugaredTree.
#include "config/desugar.h"

#include <string>

#include "config/reader.h"
#include "config/yaml_reader.h"
#include "helpers.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

ConfigNode parse_yaml(const std::string& yaml) {
  Problems problems;
  ConfigNode root = read_yaml("a.yaml", yaml, problems);
  REQUIRE(problems.all().empty());
  return root;
}

DesugaredTree desugar_yaml(const std::string& yaml, Problems& problems) {
  return desugar({parse_yaml(yaml)}, problems);
}

TEST_CASE("a later source overrides each key, whichever names the sources use for it") {
  Problems problems;
  DesugaredTree tree;
  tree.merge(desugar_yaml("bfloat16: {enabled: true}\ntrain: {steps: 3}", problems), problems);
  tree.merge(desugar_yaml("bf16: {enabled: false}\ntrain: {seed: 7}", problems), problems);
  CHECK(tree.root().find("bfloat16") == nullptr);
  const Config config = with_defaults(read_config(tree, problems));
  CHECK_FALSE(config.bf16.enabled);
  CHECK(config.train.steps == 3);
  CHECK(config.train.seed == 7);
  CHECK_FALSE(has_errors(problems.all()));
}

TEST_CASE("a later source removes what it sets by another key from the earlier ones") {
  Problems problems;
  DesugaredTree tree = desugar_yaml("train: {epochs: 2}", problems);
  const DesugaredTree later = desugar_yaml("train: {steps: 3}", problems);
  tree.merge(later, problems);
  CHECK(tree.root().at_path("train.epochs") == nullptr);
  CHECK(tree.root().at_path("train.steps")->integer == 3);
  CHECK(later.root().at_path("train.steps")->integer == 3);
  REQUIRE(problems.all().size() == 1);
  CHECK(problems.all()[0].message == "train.steps 3 replaces train.epochs 2 (a.yaml:1:17)");
}

TEST_CASE(
    "keys of PEFT's files are dropped only from such a file, and its folder is the adapter's "
    "path") {
  const std::string section = "adapter: {peft_type: LORA, task_type: CAUSAL_LM, r: 4}";
  Problems problems;
  const DesugaredTree of_file = desugar(
      {parse_yaml(section), true, ConfigNode::of_text({"a.yaml", 1, 1}, "folder")}, problems);
  CHECK(of_file.root().at_path("adapter.task_type") == nullptr);
  CHECK(of_file.root().at_path("adapter.path")->text == "folder");
  CHECK(read_config(of_file, problems).get<std::string>("adapter.path") == "folder");
  CHECK(problems.all().empty());

  const DesugaredTree written = desugar_yaml(section, problems);
  CHECK(written.root().at_path("adapter.path") == nullptr);
  read_config(written, problems);
  REQUIRE(problems.all().size() == 1);
  CHECK(problems.all()[0].message.starts_with("adapter.task_type: unknown key"));
}

}  // namespace
}  // namespace ftrun

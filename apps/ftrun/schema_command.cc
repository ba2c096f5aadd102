#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "commands.h"
#include "config/schema_docs.h"
#include "json_output.h"
#include "model/support_table.h"
#include "supported_features.h"

namespace ftrun {

Command add_schema(CLI::App& app) {
  auto markdown = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("schema", "print the JSON Schema of the config, for editors");
  command->add_flag("--markdown", *markdown, "print docs/config.md instead");
  auto answers = std::make_shared<bool>(false), support = std::make_shared<bool>(false);
  CLI::Option* answers_option =
      command->add_flag("--answers", *answers, "print the JSON Schema of --json answers instead");
  CLI::Option* support_option =
      command
          ->add_flag("--support", *support,
                     "print the features supported on CPUs and on GPUs, as JSON, instead")
          ->excludes(answers_option);
  auto models = std::make_shared<bool>(false);
  command->add_flag("--models", *models, "print docs/models.md instead")
      ->excludes(answers_option)
      ->excludes(support_option);
  return [markdown, answers, support, models] {
    std::cout << (*models     ? support_markdown()
                  : *answers  ? answer_schema()
                  : *support  ? supported_features_json()
                  : *markdown ? config_markdown()
                              : config_json_schema());
    return 0;
  };
}

}  // namespace ftrun

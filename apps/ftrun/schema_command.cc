#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "commands.h"
#include "config/schema_docs.h"

namespace ftrun {

Command add_schema(CLI::App& app) {
  auto markdown = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("schema", "print the JSON Schema of the config, for editors");
  command->add_flag("--markdown", *markdown, "print docs/config.md instead");
  return [markdown] {
    std::cout << (*markdown ? config_markdown() : config_json_schema());
    return 0;
  };
}

}  // namespace ftrun

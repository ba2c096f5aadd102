#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "commands.h"
#include "engine.h"
#include "machine/machine_file.h"
#include "report/machine.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

struct BenchOptions {
  std::string name;
  std::string out;
  bool quick = false;
};

void refuse_existing(const std::string& path) {
  std::error_code ignored;
  if (!path.empty() && std::filesystem::exists(std::filesystem::symlink_status(path, ignored)))
    throw Error(ExitCode::kUsage,
                cat("--out ", path, ": there is such a file, which stays as it is"),
                "give another name, or move it away");
}

int bench_command(const BenchOptions& options) {
  refuse_existing(options.out);
  const MachineInfo host = read_machine();
  const BenchRequest request{.name = options.name.empty() ? host.hostname : options.name,
                             .quick = options.quick,
                             .processor = host.cpu_model,
                             .measured = utc_now()};
  const std::string text = machine_text(bench_with_engine(request));
  if (options.out.empty()) {
    std::cout << text;
    return 0;
  }
  refuse_existing(options.out);
  write_file_atomic(posix_files(), options.out, text);
  std::cout << "ftrun plan --machine " << options.out << " says what a step takes here\n";
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = app.add_subcommand("bench", "measure this machine, for ftrun plan --machine");
  bench->require_subcommand(1);
  CLI::App* machine = bench->add_subcommand(
      "machine", "time operations, updates, copies and collectives, and write a machine file");
  machine->add_flag("--quick", options->quick, "fewer sizes and rounds");
  machine->add_option("--out", options->out, "the file (without: standard output)")
      ->option_text("FILE");
  machine->add_option("--name", options->name,
                      "what the machine is called there (without: its host name)");
  return [options] { return bench_command(*options); };
}

}  // namespace ftrun

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine_info.h"
#include "base/new_file.h"
#include "base/text.h"
#include "commands.h"
#include "engine.h"
#include "machine/machine_file.h"
#include "new_file_checks.h"
#include "report/cpu_load_watch.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

struct BenchOptions {
  std::string name;
  std::string out;
  bool quick = false;
  int passes = BenchRequest().passes;
  int rounds = BenchRequest().rounds;
};

/// Returns the path at which runs look for the machine file of this machine, and makes its folder.
std::string default_output_path() {
  const std::string path = own_machine_path();
  if (path.empty())
    throw Error(ExitCode::kUsage, "HOME is not set, so there is no folder for the machine file",
                "give --out FILE");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  return path;
}

/// Warns if other programs or other virtual machines used this machine's cores, because they make
/// every measurement worse.
void warn_of_load(const CpuLoadShares& load) {
  constexpr double kMuch = 0.2;
  const double cores =
      (load.other_programs + load.stolen) * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (cores > kMuch)
    log_warning(cat("other programs kept ", format_number("%.1f", cores),
                    " cores busy meanwhile, so the measured rates are too low: measure again when "
                    "they have ended"));
}

int bench_command(const BenchOptions& options) {
  if (!options.out.empty()) refuse_existing("--out", options.out);
  const std::string path = options.out.empty() ? default_output_path() : options.out;
  // The path is checked first, because the measurement takes minutes.
  if (options.out.empty())
    check_writable_folder(
        "the machine's file", path,
        "give this user the right to write there, or name another file with --out");
  else
    check_writable_folder("--out", path);
  const MachineInfo host = read_machine_info();
  const BenchRequest request{.name = options.name.empty() ? host.hostname : options.name,
                             .quick = options.quick,
                             .passes = options.passes,
                             .rounds = options.rounds,
                             .cpu_model = host.cpu_model,
                             .measured_on = utc_now(),
                             .report_progress = [](const std::string& line) { log_notice(line); }};
  const CpuLoadWatch load(1, read_cpu_times_with_children);
  const std::string text = machine_yaml(bench_with_engine(request));
  warn_of_load(load.shares());
  parse_machine(path, text);
  if (options.out.empty())
    write_file_atomic(posix_files(), path, text);
  else
    write_new_file(path, text);
  std::cout << "ftrun plan --machine " << shell_word(path)
            << " predicts the time of a step on this machine"
            << (options.out.empty() ? "; runs compare their steps with it" : "") << '\n';
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* bench = app.add_subcommand("bench", "measure this machine, for ftrun plan --machine");
  bench->require_subcommand(1);
  CLI::App* machine = bench->add_subcommand(
      "machine", "time operations, updates, copies and collectives, and write a machine file");
  machine->add_flag("--quick", options->quick, "fewer sizes, and no fp16");
  machine
      ->add_option("--passes", options->passes,
                   "how often everything is measured; the fastest pass counts (default: 2)")
      ->check(CLI::Range(1, 100))
      ->option_text("N");
  machine
      ->add_option("--rounds", options->rounds,
                   "how often a pass samples each operation; fewer are faster and less exact "
                   "(default: 12)")
      ->check(CLI::Range(1, 1000))
      ->option_text("N");
  machine
      ->add_option("--out", options->out,
                   "the file to write (default: this machine's file in ~/.cache/ftrun, with which "
                   "runs compare their steps)")
      ->option_text("FILE");
  machine->add_option("--name", options->name,
                      "name of the machine in the file (default: its host name)");
  return [options] { return bench_command(*options); };
}

}  // namespace ftrun

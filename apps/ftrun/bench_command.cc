#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"
#include "commands.h"
#include "engine.h"
#include "machine/machine_file.h"
#include "new_file_checks.h"
#include "report/machine_info.h"
#include "report/wall_time.h"

namespace ftrun {
namespace {

struct BenchOptions {
  std::string name;
  std::string out;
  bool quick = false;
};

/// Returns the path at which runs look for the machine file of this machine, and makes its folder.
std::string default_output_path() {
  const std::string path = own_machine_path();
  if (path.empty())
    throw Error(ExitCode::kUsage, "there is no HOME to keep the machine file in",
                "give --out FILE");
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  return path;
}

/// OtherLoad measures how many cores other programs and other virtual machines keep busy.
class OtherLoad {
 public:
  /// Returns the mean number of cores since the constructor. The CPU time of child processes that
  /// have ended counts as this program's.
  double cores() const {
    const Times now = read();
    const double seconds = now.machine.all_seconds - begin_.machine.all_seconds;
    if (seconds <= 0) return 0;
    const double others = now.machine.busy_seconds - begin_.machine.busy_seconds +
                          now.machine.stolen_seconds - begin_.machine.stolen_seconds -
                          (now.own_seconds - begin_.own_seconds);
    return std::max(0.0, others / seconds) * static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  }

 private:
  struct Times {
    MachineTimes machine;
    double own_seconds;
  };

  static double used_seconds(int who) {
    rusage usage{};
    ::getrusage(who, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  static Times read() {
    return {read_machine_times(), used_seconds(RUSAGE_SELF) + used_seconds(RUSAGE_CHILDREN)};
  }

  Times begin_ = read();
};

/// Warns if other programs used this machine, because they make every measurement worse.
void warn_of_load(const OtherLoad& load) {
  constexpr double kMuch = 0.2;
  if (load.cores() > kMuch)
    log_warning(cat("other programs kept ", format_number("%.1f", load.cores()),
                    " cores busy meanwhile, so the measured rates are too low: measure again when "
                    "they have ended"));
}

int bench_command(const BenchOptions& options) {
  if (!options.out.empty()) refuse_existing("--out", options.out);
  const std::string path = options.out.empty() ? default_output_path() : options.out;
  // The path is checked first, because the measurement takes minutes.
  if (options.out.empty())
    require_place_for("the machine's file", path,
                      "give this user the right to write there, or name another file with --out");
  else
    require_place_for("--out", path);
  const MachineInfo host = read_machine();
  const BenchRequest request{.name = options.name.empty() ? host.hostname : options.name,
                             .quick = options.quick,
                             .cpu_model = host.cpu_model,
                             .measured = utc_now(),
                             .say = [](const std::string& line) { log_notice(line); }};
  const OtherLoad load;
  const std::string text = machine_text(bench_with_engine(request));
  warn_of_load(load);
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
      ->add_option("--out", options->out,
                   "the file to write (default: this machine's file in ~/.cache/ftrun, with which "
                   "runs compare their steps)")
      ->option_text("FILE");
  machine->add_option("--name", options->name,
                      "name of the machine in the file (default: its host name)");
  return [options] { return bench_command(*options); };
}

}  // namespace ftrun

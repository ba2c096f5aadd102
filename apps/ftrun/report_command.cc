#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "commands.h"
#include "report/run_folder.h"
#include "report/run_report.h"

namespace ftrun {
namespace {

/// ReportOptions holds the options of `ftrun report`: the run folders, and the path of the page.
struct ReportOptions {
  std::vector<std::string> runs;
  std::string out;
};

int report(const ReportOptions& options) {
  if (options.out.empty() && options.runs.size() > 1)
    throw Error(ExitCode::kUsage, "report: several runs need --out, the page to write",
                "name the page: --out FILE.html");
  const std::string out = options.out.empty() ? RunPaths(options.runs[0]).report() : options.out;
  write_run_report(out, options.runs);
  std::cout << "wrote " << terminal_text(out) << "\n";
  return 0;
}

}  // namespace

Command add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = app.add_subcommand(
      "report", "write one HTML page about a run, or about several runs in the same charts");
  command->add_option("runs", options->runs, "run folders (output_dir)")->required();
  command->add_option("--out", options->out,
                      "the page (default for one run: report.html in its folder)");
  return [options] { return report(*options); };
}

}  // namespace ftrun

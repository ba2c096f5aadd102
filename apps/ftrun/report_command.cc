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

struct ReportWish {
  std::vector<std::string> runs;
  std::string out;
};

int report(const ReportWish& wish) {
  if (wish.out.empty() && wish.runs.size() > 1)
    throw Error(ExitCode::kUsage, "report: several runs, and no --out",
                "name the page: --out FILE.html");
  const std::string out = wish.out.empty() ? RunPaths(wish.runs[0]).report() : wish.out;
  write_run_report(out, wish.runs);
  std::cout << "wrote " << terminal_text(out) << "\n";
  return 0;
}

}  // namespace

Command add_report(CLI::App& app) {
  auto wish = std::make_shared<ReportWish>();
  CLI::App* command = app.add_subcommand(
      "report", "write one HTML page of a run, or of several laid over each other");
  command->add_option("runs", wish->runs, "run folders (output_dir)")->required();
  command->add_option("--out", wish->out, "the page; of one run report.html in its folder");
  return [wish] { return report(*wish); };
}

}  // namespace ftrun

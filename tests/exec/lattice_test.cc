#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/text.h"
#include "kernels/kernels.h"
#include "lattice.h"

#include <catch2/catch.hpp>

// All layouts of one run against one process. scripts/lattice.sh runs the whole of it; its table is in
// docs/lattice.md.

namespace ftrun {
namespace {

using fixtures::Differences;
using fixtures::Lattice;
using fixtures::LatticeCell;
using fixtures::TrainingMesh;

/// The largest difference of a tensor, and where it is, of those whose bound is the usual one or not.
std::pair<double, std::string> worst(const Differences& found, bool usual) {
  std::pair<double, std::string> most{0, "-"};
  for (const auto& [tensor, difference] : found.weights)
    if ((fixtures::weight_bound(tensor) == 1e-4) == usual && difference > most.first) most = {difference, tensor};
  return most;
}

bool is_within(const Differences& found) {
  return found.loss < fixtures::kLossBound && found.norm < fixtures::kNormBound &&
         std::all_of(found.weights.begin(), found.weights.end(),
                     [](const auto& one) { return one.second < fixtures::weight_bound(one.first); });
}

std::string text_of(const LatticeCell& cell) {
  return join(cell.values(), "\t");
}

TEST_CASE("any two of mesh, ZeRO stage, schedule, family, tier and recompute train what one process trains") {
  set_kernel_threads(1);
  const std::vector<TrainingMesh> meshes{{.stages = 4},
                                         {.shards = 3, .stages = 2},
                                         {.replicas = 2, .stages = 2},
                                         {.tensor = 2, .stages = 2},
                                         {.tensor = 2, .shards = 2, .stages = 2},
                                         {.shards = 2, .stages = 4},
                                         {.tensor = 4, .stages = 2},
                                         {.tensor = 2, .shards = 2, .replicas = 2}};
  const std::vector<LatticeCell> cells = fixtures::covering_cells(meshes);
  std::set<std::string> schedules;
  Lattice lattice(3);
  for (const LatticeCell& cell : cells) {
    INFO(text_of(cell));
    const Differences found = lattice.run(cell);
    INFO("loss " << found.loss << ", norm " << found.norm << ", " << worst(found, true).second << " "
                 << worst(found, true).first);
    CHECK(is_within(found));
    CHECK(found.weights.size() > 70);
    schedules.insert(cell.values()[5]);
  }
  CHECK(schedules.size() == 6);
}

/// Of a file with a line a cell, cells that it has.
std::set<std::string> known_cells(const std::string& path) {
  std::set<std::string> known;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (const size_t end = line.find("\t|\t"); end != std::string::npos) known.insert(line.substr(0, end));
  return known;
}

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// Appends to the file FTRUN_LATTICE_RESULTS what it does not have yet of the cells [FTRUN_LATTICE_FIRST,
/// FTRUN_LATTICE_END), complete ones first.
TEST_CASE("the lattice of all layouts", "[.lattice]") {
  set_kernel_threads(1);
  const std::string path = variable("FTRUN_LATTICE_RESULTS", "lattice.tsv");
  std::vector<std::pair<std::string, LatticeCell>> cells;
  for (const LatticeCell& cell : fixtures::complete_cells()) cells.emplace_back("complete\t" + text_of(cell), cell);
  const size_t complete = cells.size();
  for (const LatticeCell& cell : fixtures::covering_cells(fixtures::lattice_meshes()))
    cells.emplace_back("covering\t" + text_of(cell), cell);
  const size_t first = std::stoul(variable("FTRUN_LATTICE_FIRST", "0"));
  const size_t end = std::min<size_t>(cells.size(), std::stoul(variable("FTRUN_LATTICE_END", "100000")));
  const std::set<std::string> known = known_cells(path);
  std::ofstream out(path, std::ios::app);
  if (known.empty())
    out << "# " << complete << " complete, " << cells.size() - complete << " covering\npart\t"
        << join(fixtures::lattice_axes(), "\t") << "\t|\twithin\tloss\tnorm\tweights\tkey bias\tworst\tseconds\n"
        << std::flush;
  Lattice lattice(20);
  for (size_t i = first; i < end; ++i) {
    const auto& [text, cell] = cells[i];
    if (known.contains(text)) continue;
    INFO(text);
    const auto begun = std::chrono::steady_clock::now();
    const Differences found = lattice.run(cell);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
    const auto [weight, tensor] = worst(found, true);
    const bool within = is_within(found);
    out << text << "\t|\t" << (within ? "yes" : "NO") << "\t" << found.loss << "\t" << found.norm << "\t" << weight
        << "\t" << worst(found, false).first << "\t" << tensor << "\t" << fixed_text(spent.count(), 2) << std::endl;
    CHECK(within);
  }
}

}  // namespace
}  // namespace ftrun

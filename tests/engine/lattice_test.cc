#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/text.h"
#include "kernels/kernels.h"
#include "lattice.h"

#include <catch2/catch.hpp>

// These tests compare layouts of one run with one process. scripts/lattice.sh runs all of them;
// docs/lattice.md has the resulting table.

namespace ftrun {
namespace {

using testing::Differences;
using testing::Lattice;
using testing::LatticeCell;
using testing::TrainingMesh;

/// Returns the largest difference of a tensor, and the tensor's name. `usual` selects the tensors
/// that have the usual bound (1e-4), otherwise those that have their own.
std::pair<double, std::string> largest_difference(const Differences& found, bool usual) {
  std::pair<double, std::string> largest{0, "-"};
  for (const auto& [tensor, difference] : found.weights)
    if ((testing::weight_bound(tensor) == 1e-4) == usual && difference > largest.first)
      largest = {difference, tensor};
  return largest;
}

std::string text_of(const LatticeCell& cell) {
  return join(cell.values(), "\t");
}

TEST_CASE(
    "any two of mesh, ZeRO stage, schedule, family, tier and recompute train what one process "
    "trains") {
  set_kernel_threads(1);
  const std::vector<TrainingMesh> meshes{{.stages = 4},
                                         {.shards = 3, .stages = 2},
                                         {.replicas = 2, .stages = 2},
                                         {.tensor = 2, .stages = 2},
                                         {.tensor = 2, .shards = 2, .stages = 2},
                                         {.shards = 2, .stages = 4},
                                         {.tensor = 4, .stages = 2},
                                         {.tensor = 2, .shards = 2, .replicas = 2}};
  const std::vector<LatticeCell> cells = testing::covering_cells(meshes);
  std::set<std::string> schedules;
  Lattice lattice(3);
  for (const LatticeCell& cell : cells) {
    INFO(text_of(cell));
    const Differences found = lattice.run(cell);
    INFO("loss " << found.loss << ", norm " << found.norm << ", "
                 << largest_difference(found, true).second << " "
                 << largest_difference(found, true).first);
    CHECK(testing::is_within(found, found.norm < testing::kGradientNormBound));
    CHECK(found.weights.size() > 70);
    schedules.insert(cell.values()[5]);
  }
  CHECK(schedules.size() == 6);
}

TEST_CASE(
    "the first steps of one process in fp32 equal those of the training in fp64, up to rounding") {
  set_kernel_threads(1);
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"})
    for (const bool tied : {false, true}) {
      CAPTURE(family, tied);
      const LatticeCell cell{.mesh = {.micro_batches = 2}, .family = family, .tied = tied};
      const auto found = testing::train_on_mesh(cell.config(), cell.model(), cell.mesh, 4);
      testing::ExactTraining exact(cell.config(), cell.model(), 2);
      for (size_t i = 0; i < 4; ++i) {
        CAPTURE(i);
        exact.train(static_cast<int64_t>(i) + 1);
        CHECK(found.losses[i] == Approx(exact.loss()).epsilon(1e-6));
        CHECK(found.norms[i] == Approx(exact.norm()).epsilon(1e-5));
      }
    }
}

TEST_CASE(
    "a norm's error is compared with one process's own error: in step 1 with that step's, later "
    "with its largest") {
  const std::vector<double> own{1e-8, 2e-8, 3e-8, 1e-4};
  CHECK(testing::is_no_worse({1e-8, 1e-8, 2.9e-4, 1e-8}, own, 3));
  CHECK(testing::is_no_worse({8.9e-8, 0, 0, 0}, own, 3));
  CHECK_FALSE(testing::is_no_worse({9.1e-8, 0, 0, 0}, own, 3));
  CHECK_FALSE(testing::is_no_worse({0, 3.1e-4, 0, 0}, own, 3));
}

TEST_CASE(
    "with the fp64 run's weights, each step's norm is the fp64 run's, on any number of ranks") {
  set_kernel_threads(1);
  // Without fresh weights, the norm of the last of 20 steps is off by 2e-4.
  const LatticeCell cell{
      .mesh = {.tensor = 2, .shards = 2, .micro_batches = 2}, .stage = 3, .family = "qwen3"};
  const testing::FreshSteps fresh(testing::config_of_stage(0), cell.model(), 2, 20);
  CHECK(fresh.largest_norm_error(cell.config(), cell.mesh) < testing::kFreshGradientNormBound);
  testing::TrainingMesh other = cell.mesh;
  other.micro_batches = 4;
  CHECK(fresh.largest_norm_error(cell.config(), other) > 1e-2);
}

/// Reads the keys of the cells that a results file already has, one on each line.
std::set<std::string> known_cells(const std::string& path) {
  std::set<std::string> known;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (const size_t end = line.find("\t|\t"); end != std::string::npos)
      known.insert(line.substr(0, end));
  return known;
}

std::string environment_value(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

/// Appends the missing cells among [FTRUN_LATTICE_FIRST, FTRUN_LATTICE_END) to the file
/// FTRUN_LATTICE_RESULTS. The complete cells come first in this numbering, then the pairwise ones.
TEST_CASE("all layouts of the lattice are trained and recorded", "[.lattice]") {
  set_kernel_threads(1);
  const std::string path = environment_value("FTRUN_LATTICE_RESULTS", "lattice.tsv");
  std::vector<std::pair<std::string, LatticeCell>> cells;
  for (const LatticeCell& cell : testing::complete_cells())
    cells.emplace_back("complete\t" + text_of(cell), cell);
  const size_t complete = cells.size();
  for (const LatticeCell& cell : testing::covering_cells(testing::lattice_meshes()))
    cells.emplace_back("pairwise\t" + text_of(cell), cell);
  const size_t first = std::stoul(environment_value("FTRUN_LATTICE_FIRST", "0"));
  const size_t end =
      std::min<size_t>(cells.size(), std::stoul(environment_value("FTRUN_LATTICE_END", "100000")));
  const std::set<std::string> known = known_cells(path);
  std::ofstream out(path, std::ios::app);
  if (known.empty())
    out << "# " << complete << " complete, " << cells.size() - complete << " pairwise\npart\t"
        << join(testing::lattice_axes(), "\t")
        << "\t|\twithin\tloss\tnorm\tweights\tkey bias\tnorm error\town norm error\tfresh norm "
           "error"
        << "\town fresh norm error\tworst\tseconds\n"
        << std::flush;
  Lattice lattice(20);
  for (size_t i = first; i < end; ++i) {
    const auto& [text, cell] = cells[i];
    if (known.contains(text)) continue;
    INFO(text);
    const auto begun = std::chrono::steady_clock::now();
    const testing::LatticeFigures figures = lattice.measure(cell);
    const Differences& found = figures.differences;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
    const auto [weight, tensor] = largest_difference(found, true);
    out << text << "\t|\t" << (figures.is_within_bounds ? "yes" : "NO") << "\t" << found.loss
        << "\t" << found.norm << "\t" << weight << "\t" << largest_difference(found, false).first
        << "\t" << figures.norm_error << "\t" << figures.one_process_norm_error << "\t"
        << figures.fresh_norm_error << "\t" << figures.one_process_fresh_norm_error << "\t"
        << tensor << "\t" << fixed_text(spent.count(), 2) << std::endl;
    CHECK(figures.is_within_bounds);
  }
}

}  // namespace
}  // namespace ftrun

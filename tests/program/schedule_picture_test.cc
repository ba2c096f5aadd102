#include "axes/pipeline/schedule_picture.h"

#include <algorithm>

#include "base/text.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

std::string picture(PipelineSchedule kind, int stages, int chunks, int32_t micro_batches,
                    size_t width, PhaseSeconds of_chunk = {1, 2, 1, 1}) {
  const std::vector<PhaseSeconds> by_chunk(static_cast<size_t>(stages * chunks), of_chunk);
  return schedule_picture(simulate_timeline(make_schedules(kind, stages, chunks, micro_batches),
                                            traits_of(kind).placement, by_chunk),
                          width);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  REQUIRE(lines.back().empty());
  lines.pop_back();
  return lines;
}

TEST_CASE("a picture has a row for each stage and a column for each moment") {
  CHECK(picture(PipelineSchedule::k1F1B, 2, 1, 3, 80) ==
        "stage 0 | F0 F1 ......B0    F2 B1    ...B2     |\n"
        "stage 1 | ...F0 B0    F1 B1    F2 B2    ...... |\n");
  CHECK(picture(PipelineSchedule::kGpipe, 2, 1, 2, 80) ==
        "stage 0 | F0 F1 .........B0    B1     |\n"
        "stage 1 | ...F0 F1 B0    B1    ...... |\n");
  CHECK(picture(PipelineSchedule::kZbH1, 2, 1, 2, 80) ==
        "stage 0 | F0 F1 ...I0 W0 I1 W1  |\n"
        "stage 1 | ...F0 I0 F1 I1 W0 W1  |\n");
}

TEST_CASE("the chunks of a stage are marked with letters") {
  CHECK(picture(PipelineSchedule::kZbV, 2, 2, 1, 80) ==
        "stage 0 | F0a ........F0b I0b W0b ........I0a W0a  |\n"
        "stage 1 | ....F0a F0b ........I0b W0b I0a W0a .... |\n");
}

TEST_CASE("actions take columns in proportion to their time") {
  CHECK(picture(PipelineSchedule::kGpipe, 2, 1, 1, 80, {2, 3, 2, 1}) ==
        "stage 0 | F0 ........B0   |\n"
        "stage 1 | ...F0 B0   .... |\n");
}

/// Lists the labels of a row, in order.
std::vector<std::string> labels(const std::string& row) {
  std::vector<std::string> found;
  for (size_t i = row.find('|'); i < row.size(); ++i) {
    if (std::string("FBIW").find(row[i]) == std::string::npos) continue;
    size_t end = i + 1;
    while (end < row.size() && (std::isdigit(row[end]) != 0 || std::islower(row[end]) != 0)) ++end;
    found.push_back(row.substr(i, end - i));
  }
  return found;
}

TEST_CASE("a picture is no wider than asked, and its labels are whole and in order") {
  for (const PipelineSchedule kind :
       {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved, PipelineSchedule::kZbV})
    for (const size_t width : {40, 60, 80, 120, 200, 1000})
      for (const int stages : {2, 4, 11}) {
        const int chunks = kind == PipelineSchedule::k1F1B ? 1 : 2;
        const int32_t count = 2 * stages;
        const std::string drawn = picture(kind, stages, chunks, count, width);
        INFO(width << '\n' << drawn);
        const std::vector<std::string> lines = lines_of(drawn);
        REQUIRE(lines.size() == static_cast<size_t>(stages));
        for (int stage = 0; stage < stages; ++stage) {
          const std::string& line = lines[static_cast<size_t>(stage)];
          REQUIRE(line.size() <= width);
          REQUIRE(line.size() == lines[0].size());
          // The labels are a subsequence of the list.
          std::vector<std::string> all;
          for (const ScheduleAction& action : make_schedule(kind, stages, chunks, stage, count)) {
            std::string name =
                std::string(1, phase_letter(action.phase)) + std::to_string(action.micro_batch);
            if (chunks > 1) name += action.chunk == 0 ? 'a' : 'b';
            all.push_back(name);
          }
          auto at = all.begin();
          for (const std::string& label : labels(line)) {
            at = std::find_if(at, all.end(), [&](const std::string& name) {
              return label.size() == 1 ? name[0] == label[0] : name == label;
            });
            INFO(label);
            REQUIRE(at != all.end());
            ++at;
          }
          const bool whole = line.find(" ... ") == std::string::npos;
          if (whole) REQUIRE(labels(line).size() == all.size());
          if (width == 1000 && stages < 11) REQUIRE(labels(line) == all);
        }
      }
}

TEST_CASE("a picture that does not fit keeps its start and its end") {
  const std::string drawn = picture(PipelineSchedule::k1F1B, 2, 1, 50, 60);
  const std::vector<std::string> lines = lines_of(drawn);
  INFO(drawn);
  CHECK(lines[0].size() == 60);
  CHECK(lines[0].starts_with("stage 0 | F0  F1  ........B0"));
  CHECK(lines[0].find(" ... ") != std::string::npos);
  CHECK(lines[0].ends_with("....B49      |"));
  CHECK(lines[1].ends_with("      ........ |"));  // B49 begins in the omitted part
}

TEST_CASE("the first and the last of many stages are drawn") {
  const std::vector<std::string> lines = lines_of(picture(PipelineSchedule::k1F1B, 40, 1, 40, 100));
  REQUIRE(lines.size() == 16);
  CHECK(lines[0].starts_with("stage 0  | "));
  CHECK(lines[7].starts_with("stage 7  | "));
  CHECK(lines[8] == "         | ... ");
  CHECK(lines[9].starts_with("stage 33 | "));
  CHECK(lines[15].starts_with("stage 39 | "));
  CHECK(lines_of(picture(PipelineSchedule::k1F1B, 16, 1, 16, 100)).size() == 16);
}

TEST_CASE("the start of a deep pipeline is drawn up to the first backward pass of every stage") {
  for (const int stages : {8, 16})
    for (const std::string& line : lines_of(picture(PipelineSchedule::k1F1B, stages, 1, 64, 120))) {
      INFO(line);
      CHECK(line.substr(0, line.find(" ... ")).find('B') != std::string::npos);
      // A label has no number if there is no room for two digits.
      CHECK(labels(line).front() == "F");
    }
}

TEST_CASE("actions too short for a name are drawn without one") {
  const std::vector<PhaseSeconds> by_chunk{{1e-6, 2e-6, 1e-6, 1e-6}, {1, 2, 1, 1}};
  const std::string drawn =
      schedule_picture(simulate_timeline(make_schedules(PipelineSchedule::k1F1B, 2, 1, 2),
                                         ChunkPlacement::kLoop, by_chunk),
                       60);
  CHECK(drawn ==
        "stage 0 | .................. |\n"
        "stage 1 | F0 B0    F1 B1     |\n");
}

}  // namespace
}  // namespace ftrun

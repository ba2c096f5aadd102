#include "program/schedule_picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace ftrun {
namespace {

constexpr size_t kMostRows = 16;
/// Columns of a whole timeline, in pictures: with more, the shortest actions have no room for a
/// name.
constexpr double kMostPictures = 64;
constexpr const char* kLeftOut = " ... ";
constexpr size_t kLeftOutColumns = 5;

class Picture {
 public:
  Picture(const ScheduleTimeline& timeline, size_t width) : timeline_(timeline) {
    for (size_t s = 0; s < timeline.stages.size(); ++s)
      prefix_ = std::max(prefix_, stage_name(s).size());
    for_all([&](const TimedAction& timed) { chunks_ = std::max(chunks_, timed.action.chunk + 1); });
    for_all(
        [&](const TimedAction& timed) { name_ = std::max(name_, name_of(timed.action).size()); });
    const size_t frame = prefix_ + std::string(" | ").size() + std::string(" |").size();
    const size_t least = 2 * name_ + kLeftOutColumns;
    choose_scale(std::max(width, frame + least) - frame);
  }

  std::string draw() const {
    std::string out;
    const size_t rows = timeline_.stages.size();
    const bool all = rows <= kMostRows;
    const size_t first = all ? rows : kMostRows / 2;
    for (size_t s = 0; s < first; ++s) out += row(s);
    if (all) return out;
    out += std::string(prefix_, ' ') + " |" + kLeftOut + "\n";
    for (size_t s = rows - (kMostRows - first - 1); s < rows; ++s) out += row(s);
    return out;
  }

 private:
  static std::string stage_name(size_t stage) { return cat("stage ", stage); }

  std::string name_of(const ScheduleAction& action) const {
    std::string name = cat(phase_letter(action.phase), action.micro_batch);
    if (chunks_ > 1 && chunks_ <= 26) name += static_cast<char>('a' + action.chunk);
    return name;
  }

  template <typename See>
  void for_all(const See& see) const {
    for (const StageTimeline& stage : timeline_.stages)
      for (const TimedAction& timed : stage.actions) see(timed);
  }

  /// So wide that every action has room for its name and a blank, or for its name alone where all
  /// fits then; of what is still too wide the middle is left out.
  void choose_scale(size_t room) {
    double shortest = timeline_.makespan;
    for_all([&](const TimedAction& timed) {
      if (timed.end > timed.start) shortest = std::min(shortest, timed.end - timed.start);
    });
    const double columns = static_cast<double>(room);
    const double most = kMostPictures * columns / timeline_.makespan;
    const double loose = std::min(static_cast<double>(name_ + 1) / shortest, most);
    const double tight = std::min(static_cast<double>(name_) / shortest, most);
    const bool fits_tight = std::round(tight * timeline_.makespan) <= columns;
    const bool fits_loose = std::round(loose * timeline_.makespan) <= columns;
    scale_ = !fits_loose && fits_tight ? tight : loose;
    columns_ = column(timeline_.makespan);
    head_ = columns_;
    if (columns_ <= room) return;
    const size_t shown = room - kLeftOutColumns;
    head_ = shown * 2 / 3;  // the steady middle is like itself, the begin is not like the end
    tail_ = shown - head_;
  }

  size_t column(double seconds) const {
    return static_cast<size_t>(std::llround(seconds * scale_));
  }

  bool shows(size_t first, size_t end) const {
    return end <= head_ || (tail_ > 0 && first >= columns_ - tail_);
  }

  std::string row(size_t stage) const {
    std::string line(columns_, '.');
    for (const TimedAction& timed : timeline_.stages[stage].actions) {
      const size_t first = column(timed.start), end = column(timed.end);
      line.replace(first, end - first, end - first, ' ');
      const std::string name = name_of(timed.action);
      if (name.size() <= end - first && shows(first, first + name.size()))
        line.replace(first, name.size(), name);
    }
    if (tail_ > 0) line = line.substr(0, head_) + kLeftOut + line.substr(columns_ - tail_);
    const std::string name = stage_name(stage);
    return name + std::string(prefix_ - name.size(), ' ') + " | " + line + " |\n";
  }

  const ScheduleTimeline& timeline_;
  size_t prefix_ = 0;
  int32_t chunks_ = 1;
  size_t name_ = 0;     // columns of the longest name
  double scale_ = 1;    // columns a second
  size_t columns_ = 0;  // of the whole timeline
  size_t head_ = 0;     // columns shown of its begin, and of its end
  size_t tail_ = 0;
};

}  // namespace

std::string schedule_picture(const ScheduleTimeline& timeline, size_t width) {
  require(timeline.makespan > 0, "a timeline that takes time");
  return Picture(timeline, width).draw();
}

}  // namespace ftrun

#include "axes/pipeline/schedule_picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace ftrun {
namespace {

constexpr size_t kMaxRows = 16;
constexpr const char* kLeftOut = " ... ";
constexpr size_t kLeftOutColumns = 5;
/// Actions shorter than this fraction of the longest one need not have room for a name: an
/// embedding's action would make all others very wide.
constexpr double kShort = 0.1;

/// SchedulePicture draws the rows of one timeline.
class SchedulePicture {
 public:
  SchedulePicture(const ScheduleTimeline& timeline, size_t width) : timeline_(timeline) {
    for (size_t s = 0; s < timeline.stages.size(); ++s)
      prefix_columns_ = std::max(prefix_columns_, stage_name(s).size());
    for_each_action(
        [&](const TimedAction& timed) { chunks_ = std::max(chunks_, timed.action.chunk + 1); });
    for_each_action([&](const TimedAction& timed) {
      name_columns_ = std::max(name_columns_, name_of(timed.action).size());
    });
    const size_t frame = prefix_columns_ + std::string(" | ").size() + std::string(" |").size();
    const size_t least = 2 * name_columns_ + kLeftOutColumns;
    choose_scale(std::max(width, frame + least) - frame);
  }

  std::string draw() const {
    std::string out;
    const size_t rows = timeline_.stages.size();
    const bool all = rows <= kMaxRows;
    const size_t first = all ? rows : kMaxRows / 2;
    for (size_t s = 0; s < first; ++s) out += row(s);
    if (all) return out;
    out += std::string(prefix_columns_, ' ') + " |" + kLeftOut + "\n";
    for (size_t s = rows - (kMaxRows - first - 1); s < rows; ++s) out += row(s);
    return out;
  }

 private:
  static std::string stage_name(size_t stage) { return cat("stage ", stage); }

  std::string name_of(const ScheduleAction& action) const {
    std::string name = cat(phase_letter(action.phase), action.micro_batch);
    if (chunks_ > 1 && chunks_ <= 26) name += static_cast<char>('a' + action.chunk);
    return name;
  }

  template <typename Visit>
  void for_each_action(const Visit& visit) const {
    for (const StageTimeline& stage : timeline_.stages)
      for (const TimedAction& timed : stage.actions) visit(timed);
  }

  /// Returns the seconds of the shortest action that has room for its name.
  double shortest_named() const {
    double longest = 0;
    for_each_action([&](const TimedAction& timed) {
      longest = std::max(longest, timed.end_seconds - timed.start_seconds);
    });
    double shortest = longest;
    for_each_action([&](const TimedAction& timed) {
      const double seconds = timed.end_seconds - timed.start_seconds;
      if (seconds >= kShort * longest) shortest = std::min(shortest, seconds);
    });
    return shortest;
  }

  /// Chooses the scale. Actions have room for their name and a space, or for the name only if
  /// everything fits then. Otherwise the middle is left out, and the start is drawn so narrow that
  /// each stage's first backward pass is visible, down to one column for each action.
  void choose_scale(size_t room) {
    const double shortest = shortest_named();
    const auto fits = [&] { return column(timeline_.makespan_seconds) <= room; };
    const size_t shown = room - kLeftOutColumns;
    // The steady middle repeats, so it is cut; start and end differ, so both are drawn.
    const size_t head = shown * 2 / 3;
    columns_per_second_ = static_cast<double>(name_columns_ + 1) / shortest;
    if (!fits()) columns_per_second_ = static_cast<double>(name_columns_) / shortest;
    if (!fits()) {
      // Actions have a whole number of columns, so that equally long actions look the same.
      const double wanted = std::floor(static_cast<double>(head) / warm_up() * shortest);
      columns_per_second_ =
          std::clamp(wanted, 1.0, static_cast<double>(name_columns_ + 1)) / shortest;
    }
    columns_ = head_columns_ = column(timeline_.makespan_seconds);
    if (columns_ <= room) return;
    head_columns_ = head;
    tail_columns_ = shown - head;
  }

  /// Returns the time when every stage has ended its first action that is not a forward pass.
  double warm_up() const {
    double end = 0;
    for (const StageTimeline& stage : timeline_.stages) {
      const auto first = std::find_if(
          stage.actions.begin(), stage.actions.end(),
          [](const TimedAction& timed) { return timed.action.phase != Phase::kForward; });
      if (first != stage.actions.end()) end = std::max(end, first->end_seconds);
    }
    return end;
  }

  size_t column(double seconds) const {
    return static_cast<size_t>(std::llround(seconds * columns_per_second_));
  }

  bool shows(size_t column) const {
    return column < head_columns_ || column + tail_columns_ >= columns_;
  }

  /// Returns the position in the line of a column that is shown.
  size_t position_of(size_t column) const {
    return column < head_columns_
               ? column
               : column - (columns_ - tail_columns_) + head_columns_ + kLeftOutColumns;
  }

  /// Returns the text of columns [first, end): the action's name or, if the longest name would not
  /// fit, only its first letter.
  std::string text_of(const ScheduleAction& action, size_t first, size_t end) const {
    std::string name = name_of(action);
    if (end - first < name_columns_) name.resize(std::min<size_t>(1, end - first));
    // A part of a name could be read as the name of another action.
    return name.empty() || (shows(first) && shows(first + name.size() - 1)) ? name : "";
  }

  std::string row(size_t stage) const {
    std::string line(tail_columns_ > 0 ? head_columns_ + kLeftOutColumns + tail_columns_ : columns_,
                     '.');
    if (tail_columns_ > 0) line.replace(head_columns_, kLeftOutColumns, kLeftOut);
    for (const TimedAction& timed : timeline_.stages[stage].actions) {
      const size_t first = column(timed.start_seconds), end = column(timed.end_seconds);
      const std::string text = text_of(timed.action, first, end);
      for (size_t k = first; k < end; ++k)
        if (shows(k)) line[position_of(k)] = k - first < text.size() ? text[k - first] : ' ';
    }
    const std::string name = stage_name(stage);
    return name + std::string(prefix_columns_ - name.size(), ' ') + " | " + line + " |\n";
  }

  const ScheduleTimeline& timeline_;
  size_t prefix_columns_ = 0;
  int32_t chunks_ = 1;
  size_t name_columns_ = 0;  // of the longest name
  double columns_per_second_ = 1;
  size_t columns_ = 0;       // of the whole timeline
  size_t head_columns_ = 0;  // shown of its start
  size_t tail_columns_ = 0;  // shown of its end
};

}  // namespace

std::string schedule_picture(const ScheduleTimeline& timeline, size_t width) {
  require(timeline.makespan_seconds > 0, "the makespan of a timeline is positive");
  return SchedulePicture(timeline, width).draw();
}

}  // namespace ftrun

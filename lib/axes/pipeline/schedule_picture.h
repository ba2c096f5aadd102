#pragma once

#include <cstddef>
#include <string>

#include "axes/pipeline/schedule_timeline.h"

namespace ftrun {

/// Draws a timeline as papers do: a row for each stage, time from left to right.
///
///   stage 0 | F0 F1 ......B0    F2 B1    ...B2     |
///   stage 1 | ...F0 B0    F1 B1    F2 B2    ...... |
///
/// Letter and number are phase and micro-batch, with 'a' for the first chunk and 'b' for the second
/// if a stage has several. The number is left out if there is no room; '.' is a stage that waits.
/// The picture has at most `width` columns: a longer one keeps its start and its end, and of more
/// than 16 stages the first and the last are drawn.
std::string schedule_picture(const ScheduleTimeline& timeline, size_t width);

}  // namespace ftrun

#pragma once

namespace ftrun {

// lib/report/page/, as it is compiled in (lib/CMakeLists.txt).

/// The page with places for the rest: @CSS@, @JS@, @DATA@.
extern const char* const kReportPage;
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace ftrun

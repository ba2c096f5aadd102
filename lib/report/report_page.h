#pragma once

namespace ftrun {

// The files of lib/report/page/, which lib/CMakeLists.txt compiles into the program.

/// The style and script that all pages share.
extern const char* const kPageStyle;
extern const char* const kPageScript;
/// The pages with placeholders for the other parts (report/html_page.h), and the parts of each
/// page.
extern const char* const kReportPage;
extern const char* const kReportScript;
extern const char* const kPlanPage;
extern const char* const kPlanStyle;
extern const char* const kPlanScript;

}  // namespace ftrun

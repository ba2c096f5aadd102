#include "report/html_page.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "report/report_page.h"

namespace ftrun {
namespace {
namespace fs = std::filesystem;

/// Formats JSON to be embedded in a <script> element. Characters are escaped so that no text in the
/// JSON can end the element or begin another.
std::string escape_json(const nlohmann::ordered_json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace))
    c == '<' ? out += "\\u003c" : out += c;
  return out;
}

std::string replace_marker(std::string page, std::string_view marker, const std::string& text) {
  const size_t offset = page.find(marker);
  require(offset != page.npos, "the page has a place for it");
  return page.replace(offset, marker.size(), text);
}

bool begins_like_page(const std::string& path, std::string_view page) {
  const std::string_view page_start = page.substr(0, page.find("-->"));
  std::ifstream file(path, std::ios::binary);
  std::string file_start(page_start.size(), '\0');
  file.read(file_start.data(), static_cast<std::streamsize>(file_start.size()));
  return file && file_start == page_start;
}

}  // namespace

std::string fill_page(const PageSources& parts, const nlohmann::ordered_json& data) {
  std::string page = replace_marker(parts.page, "@CSS@", cat(kPageStyle, parts.style));
  page = replace_marker(std::move(page), "@JS@", cat(kPageScript, parts.script));
  return replace_marker(std::move(page), "@DATA@", escape_json(data));
}

void refuse_foreign_page(const std::string& path, const PageSources& parts, const char* what,
                         const char* option) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return;
  if (fs::is_regular_file(status) && begins_like_page(path, parts.page)) return;
  throw Error(ExitCode::kUsage, cat(path, ": is not ", what, ", and is not overwritten"),
              cat("give another name ", option, ", or move that away"));
}

}  // namespace ftrun

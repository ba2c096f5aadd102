#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ftrun {

/// PageSources holds the texts that make up one of ftrun's HTML pages (lib/report/page).
struct PageSources {
  /// The page with placeholders for the other parts: @CSS@, @JS@, @DATA@. It begins with a comment
  /// that identifies pages of this kind.
  const char* page = nullptr;
  /// The page's own style and script, which follow the common ones of all pages.
  const char* style = "";
  const char* script = "";
};

/// Makes a page that needs no other file and no network. Its script reads `data` from the element
/// with the id "data"; no text in the data can end the element or begin another. Bytes that are not
/// UTF-8 are replaced.
std::string fill_page(const PageSources& parts, const nlohmann::ordered_json& data);

/// Throws Error(kUsage) if the file `path` exists and was not made from these parts: "FILE: is not
/// `what`, and is not overwritten". `option` is the command-line option with which the user chooses
/// another file.
void refuse_foreign_page(const std::string& path, const PageSources& parts, const char* what,
                         const char* option);

}  // namespace ftrun

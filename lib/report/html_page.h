#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ftrun {

/// PageParts are the texts that make up one of ftrun's pages (lib/report/page).
struct PageParts {
  /// The page with places for the rest: @CSS@, @JS@, @DATA@. It begins with a comment that
  /// distinguishes it from other files.
  const char* page = nullptr;
  /// The page's own style and script, which follow those that all pages have.
  const char* style = "";
  const char* script = "";
};

/// Makes a page that needs no other file and no network. Its script finds `data` in the element of
/// that name; no text in it can end the element or begin another. Bytes that are not UTF-8 are
/// replaced.
std::string filled_page(const PageParts& parts, const nlohmann::ordered_json& data);

/// Refuses an existing `path` that is not a page of these parts with Error(kUsage): "FILE: is not
/// `what`, and is not overwritten". `option` is the option that gives another name.
void refuse_foreign_page(const std::string& path, const PageParts& parts, const char* what,
                         const char* option);

}  // namespace ftrun

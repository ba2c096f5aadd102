#include "data/jsonl_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/utf8.h"
#include "data/jsonl_line.h"

namespace ftrun {
namespace {

/// Returns whether the text of a problem begins with a field's name; such a text ends with its
/// remedy.
bool names_field(std::string_view problem) {
  return problem.starts_with('"');
}

std::string remedy_for(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t");
  if (first != std::string_view::npos && line[first] == '[')
    return "write one object a line (JSON Lines), not one array";
  for (const char* key : {"\"messages\"", "\"prompt\"", "\"text\"", "\"conversations\""})
    if (line.find(key) != std::string_view::npos)
      return "turn text or chats into tokens with scripts/prepare_data.py";
  return "write one object a line, such as {\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}";
}

}  // namespace

JsonlFile::JsonlFile(const std::string& path) : TokenFile(path), file_(path) {
  index_lines();
  documents_ = static_cast<int64_t>(offsets_.size());
  tokens_ = starts_.back();
  loss_mask_ = LossMask(trained_bits_);
}

std::string_view JsonlFile::text() const {
  const auto bytes = file_.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view JsonlFile::line_at(int64_t offset) const {
  const std::string_view rest = text().substr(static_cast<size_t>(offset));
  const void* end = rest.empty() ? nullptr : std::memchr(rest.data(), '\n', rest.size());
  return end == nullptr
             ? rest
             : rest.substr(0, static_cast<size_t>(static_cast<const char*>(end) - rest.data()));
}

void JsonlFile::index_lines() {
  starts_.push_back(0);
  refuse_wide_encoding(text(), path_);
  ReadScratch parsed;
  JsonlLines lines(text());
  while (const auto line = lines.next()) {
    const std::string problem = parse_jsonl_line(line->text, parsed.ids, parsed.labels, &unread_);
    if (!problem.empty())
      throw Error(ExitCode::kBadInput, cat(path_, ":", line->number, ": ", problem),
                  names_field(problem) ? "" : remedy_for(line->text));
    add_line(parsed, line->offset);
  }
  longest_line_ = static_cast<int64_t>(parsed.ids.capacity());
}

void JsonlFile::add_line(const ReadScratch& line, int64_t offset) {
  const int64_t first = starts_.back();
  offsets_.push_back(offset);
  starts_.push_back(first + static_cast<int64_t>(line.ids.size()));
  trained_bits_.resize(static_cast<size_t>((starts_.back() + 7) / 8));
  for (size_t i = 0; i < line.labels.size(); ++i) {
    const auto bit = static_cast<size_t>(first) + i;
    if (line.labels[i] != kIgnoredLabel) trained_bits_[bit / 8] |= std::byte{1} << (bit % 8);
  }
}

std::vector<std::string> JsonlFile::opening_notices() const {
  if (unread_.empty()) return {};
  std::string names;
  for (const auto& [name, lines] : unread_)
    names += cat(names.empty() ? "" : ", ", "\"", escape_not_utf8(name), "\" of ",
                 count_text(lines, "line"));
  return {cat(path_, ": not read: ", names)};
}

int64_t JsonlFile::find_document(int64_t token) const {
  // The last document that begins at or before the token holds it: empty documents also begin
  // there.
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
  return after - starts_.begin() - 1;
}

void JsonlFile::load_line(int64_t document, ReadScratch& scratch) const {
  if (scratch.file == this && scratch.document == document) return;
  scratch.file = nullptr;
  const std::string problem = parse_jsonl_line(line_at(offsets_[static_cast<size_t>(document)]),
                                               scratch.ids, scratch.labels);
  const int64_t expected = document_start(document + 1) - document_start(document);
  if (!problem.empty() || static_cast<int64_t>(scratch.ids.size()) != expected)
    throw Error(ExitCode::kBadInput, cat(path_, ": was changed while in use"),
                "write new data to a new file; do not change a file that a run is reading");
  scratch.file = this;
  scratch.document = document;
}

void JsonlFile::read(int64_t first, std::span<int32_t> ids, std::span<int32_t> labels,
                     ReadScratch& scratch) const {
  const auto count = static_cast<int64_t>(ids.size());
  require(first >= 0 && first + count <= tokens_, "the read ends within the tokens");
  for (int64_t done = 0; done < count;) {
    const int64_t document = find_document(first + done);
    load_line(document, scratch);
    const int64_t skip = first + done - document_start(document);
    const int64_t n = std::min(count - done, static_cast<int64_t>(scratch.ids.size()) - skip);
    std::copy_n(scratch.ids.begin() + skip, n, ids.begin() + done);
    std::copy_n(scratch.labels.begin() + skip, n, labels.begin() + done);
    done += n;
  }
}

TokenLocation JsonlFile::locate(int64_t token) const {
  const int64_t document = find_document(token);
  const int64_t offset = offsets_[static_cast<size_t>(document)];
  ReadScratch scratch;
  load_line(document, scratch);
  const auto index = static_cast<size_t>(token - document_start(document));
  const std::string_view before = text().substr(0, static_cast<size_t>(offset));
  return {.file = path_,
          .offset = offset,
          .line = 1 + std::count(before.begin(), before.end(), '\n'),
          .value = scratch.ids[index]};
}

}  // namespace ftrun

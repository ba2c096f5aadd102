#include "report/csv_monitor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace ftrun {
namespace {

std::string file_stem(std::string_view name) {
  std::string stem(name);
  std::replace_if(
      stem.begin(), stem.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  return stem;
}

/// Returns the header, and the rows up to the count `samples`. If several rows have the same step,
/// keeps the last one, which a later start of the run wrote. Removes an incomplete row, which a
/// killed run leaves, and headers between rows.
std::string rows_to_keep(std::string_view text, const std::string& header, int64_t samples) {
  std::vector<std::pair<int64_t, std::string_view>> rows;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const std::string_view row = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    int64_t step = 0;
    const auto [rest, problem] = std::from_chars(row.data(), row.data() + row.size(), step);
    if (problem != std::errc{} || *rest != ',') continue;
    while (!rows.empty() && rows.back().first >= step) rows.pop_back();
    if (step <= samples) rows.emplace_back(step, row);
  }
  std::string kept_text = header;
  for (const auto& [step, row] : rows) kept_text += row;
  return kept_text;
}

std::string column_name(std::string_view name) {
  return std::string(name.substr(name.rfind('/') + 1));
}

}  // namespace

std::string python_float_text(double value) {
  if (!std::isfinite(value)) return number_text(value);
  // The number gets its shortest digits. Python writes an exponent below 1e-4 and from 1e16 on.
  std::array<char, 400> buffer{};
  char* const end = buffer.data() + buffer.size();
  const double size = std::abs(value);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto format = exponent ? std::chars_format::scientific : std::chars_format::fixed;
  const auto result = std::to_chars(buffer.data(), end, value, format);
  std::string text(buffer.data(), result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

CsvMonitor::CsvMonitor(const CsvMonitorOptions& options)
    : folder_((std::filesystem::path(options.output_path) / options.job_name).string()),
      resumed_samples_(options.resumed_samples) {
  posix_files().make_folder(folder_);
}

AppendFile CsvMonitor::open(const std::string& path, const std::string& header) const {
  std::error_code error;
  const bool file_exists =
      std::filesystem::is_regular_file(std::filesystem::symlink_status(path, error));
  if (file_exists && resumed_samples_) {
    const std::string old_text = read_file(path, INT64_MAX),
                      new_text = rows_to_keep(old_text, header, *resumed_samples_);
    if (new_text != old_text) write_file_atomic(posix_files(), path, new_text);
    return AppendFile(path);
  }
  if (file_exists) {
    const std::string other_path = make_unique_name(path, ".other-");
    posix_files().rename(path, other_path);
    log_notice(cat(path, ": held rows of another run; it was renamed to ", other_path, " now"));
  }
  AppendFile file(path);
  file.append(header);
  return file;
}

void CsvMonitor::write(std::string_view name, double value, int64_t step) {
  const std::string stem = file_stem(name);
  auto file = files_.find(stem);
  if (file == files_.end())
    file = files_
               .emplace(stem, open(cat(folder_, "/", stem, ".csv"),
                                   cat("step,", column_name(name), "\r\n")))
               .first;
  file->second.append(cat(step, ",", python_float_text(value), "\r\n"));
}

void CsvMonitor::write(const StepMetrics& metrics) {
  if (!metrics.trained) return;
  write("Train/Samples/train_loss", metrics.loss, metrics.samples);
  write("Train/Samples/lr", metrics.learning_rate, metrics.samples);
  if (metrics.loss_scale) write("Train/Samples/loss_scale", *metrics.loss_scale, metrics.samples);
}

}  // namespace ftrun

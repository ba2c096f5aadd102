#include "report/csv_monitor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace ftrun {
namespace {

std::string file_stem(std::string_view name) {
  std::string stem(name);
  std::replace_if(
      stem.begin(), stem.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  return stem;
}

std::string last_part(std::string_view name) {
  return std::string(name.substr(name.rfind('/') + 1));
}

}  // namespace

std::string python_float_text(double value) {
  if (!std::isfinite(value)) return number_text(value);
  // Shortest digits first; Python turns to an exponent below 1e-4 and from 1e16 on.
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
    : folder_((std::filesystem::path(options.output_path) / options.job_name).string()) {
  posix_files().make_folder(folder_);
}

void CsvMonitor::write(std::string_view name, double value, int64_t step) {
  const std::string stem = file_stem(name);
  auto found = files_.find(stem);
  if (found == files_.end()) {
    found = files_.emplace(stem, AppendFile(cat(folder_, "/", stem, ".csv"))).first;
    found->second.append(cat("step,", last_part(name), "\r\n"));
  }
  found->second.append(cat(step, ",", python_float_text(value), "\r\n"));
}

void CsvMonitor::write(const StepMetrics& metrics) {
  if (!metrics.trained) return;
  write("Train/Samples/train_loss", metrics.loss, metrics.samples);
  write("Train/Samples/lr", metrics.learning_rate, metrics.samples);
  if (metrics.loss_scale) write("Train/Samples/loss_scale", *metrics.loss_scale, metrics.samples);
}

}  // namespace ftrun

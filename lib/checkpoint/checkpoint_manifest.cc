#include "checkpoint/checkpoint_manifest.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "base/amount_text.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/json_strict.h"
#include "checkpoint/safetensors.h"

namespace ftrun {
namespace {
using nlohmann::json;

// The manifest on disk begins with this text, followed by the checksum of the rest. The checksum is
// found by its position, so that every byte of the file is checked.
constexpr std::string_view kOpening = "{\n\"xxh3\": \"";
constexpr size_t kHashDigits = 16;

[[noreturn]] void refuse_manifest(const std::string& message) {
  throw Error(ExitCode::kBadInput, message,
              "resume from another checkpoint (ftrun inspect lists them): this one is damaged");
}

json slice_json(const StateSliceRecord& slice) {
  const Box& box = slice.box;
  return {{"tensor", slice.tensor},      {"kind", slice.kind},   {"dtype", dtype_name(slice.dtype)},
          {"shape", slice.tensor_shape}, {"offset", box.offset}, {"extent", box.extent},
          {"xxh3", hex64(slice.xxh3)}};
}

std::vector<int64_t> parse_sizes(const json& value, const char* key, const std::string& where) {
  std::vector<int64_t> sizes;
  for (const json& size : json_array(value, key, where)) {
    const bool fits = size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX;
    if (!fits) refuse_manifest(cat(where, ": field \"", key, "\" must hold integers of 0 or more"));
    if (sizes.size() == kMaxStateDimensions)
      refuse_manifest(
          cat(where, ": field \"", key, "\" has more than ", kMaxStateDimensions, " dimensions"));
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

Box parse_box(const json& value, const std::vector<int64_t>& shape, const std::string& where) {
  const Box box{parse_sizes(value, "offset", where), parse_sizes(value, "extent", where)};
  for (const auto& [key, sizes] : {std::pair("offset", &box.offset), {"extent", &box.extent}})
    if (sizes->size() != shape.size())
      refuse_manifest(cat(where, ": field \"", key, "\" has ",
                          count_text(std::ssize(*sizes), "dimension"), ", the shape has ",
                          shape.size()));
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.extent[d] == 0) refuse_manifest(cat(where, ": the slice is empty in dimension ", d));
    if (box.extent[d] > shape[d] || box.offset[d] > shape[d] - box.extent[d])
      refuse_manifest(cat(where, ": the slice begins at ", box.offset[d], " of dimension ", d,
                          " and has ", box.extent[d], ", the tensor has ", shape[d]));
  }
  return box;
}

/// Returns "tensor.kind": the entry's name of a whole tensor, and the prefix for its parts.
std::string whole_name(const StateSliceRecord& slice) {
  return cat(slice.tensor, ".", slice.kind);
}

StateSliceRecord parse_slice(const json& value, const std::string& file_where) {
  StateSliceRecord slice;
  slice.tensor = json_text(value, "tensor", file_where);
  const std::string where = cat(file_where, ": tensor \"", printable_text(slice.tensor), "\"");
  slice.kind = json_text(value, "kind", where);
  const std::string dtype = json_text(value, "dtype", where);
  if (!dtype_from_name(dtype))
    refuse_manifest(cat(where, ": dtype \"", printable_text(dtype), "\" is unknown"));
  slice.dtype = *dtype_from_name(dtype);
  slice.tensor_shape = parse_sizes(value, "shape", where);
  checked_elements(slice.tensor_shape, where + ": shape");
  slice = slice_record(slice.tensor, slice.kind, slice.dtype, slice.tensor_shape,
                       parse_box(value, slice.tensor_shape, where));
  if (slice.tensor.empty() || slice.kind.empty() || !tensor_name_problem(slice.entry).empty())
    refuse_manifest(cat(where, ": the name or its kind \"", printable_text(slice.kind),
                        "\" is empty, too long, a path, or holds a control character"));
  slice.xxh3 = json_hash(value, "xxh3", where);
  return slice;
}

json record_json_without_slices(const RankRecord& record) {
  json value{{"rank", record.rank},
             {"file", record.file},
             {"bytes", record.bytes},
             {"header_xxh3", hex64(record.header_xxh3)},
             {"xxh3", hex64(record.xxh3)}};
  if (!record.read_back.empty()) value["read_back"] = record.read_back;
  return value;
}

/// Formats a record with one slice per line, so that a person can read it and a tool can compare
/// two.
std::string record_lines(const RankRecord& record) {
  std::string text = record_json_without_slices(record).dump();
  text.pop_back();
  text += ",\"slices\":[";
  for (size_t i = 0; i < record.slices.size(); ++i)
    text += cat(i > 0 ? ",\n  " : "\n  ", slice_json(record.slices[i]).dump());
  return text + "\n ]}";
}

RankRecord parse_record(const json& value, const std::string& where) {
  RankRecord record;
  const int64_t rank = json_int(value, "rank", where);
  if (rank > 1'000'000) refuse_manifest(cat(where, ": rank ", rank, " is too large"));
  record.rank = static_cast<int>(rank);
  record.file = json_text(value, "file", where);
  if (record.file != rank_file_name(record.rank))
    refuse_manifest(cat(where, ": the file of rank ", rank, " must be ",
                        rank_file_name(record.rank), ", found ", printable_text(record.file)));
  const std::string file_where = cat(where, ": ", record.file);
  record.bytes = json_int(value, "bytes", file_where);
  record.header_xxh3 = json_hash(value, "header_xxh3", file_where);
  record.xxh3 = json_hash(value, "xxh3", file_where);
  if (value.contains("read_back")) record.read_back = json_text(value, "read_back", file_where);
  std::set<std::string> entries;
  for (const json& item : json_array(value, "slices", file_where)) {
    record.slices.push_back(parse_slice(item, file_where));
    const std::string& name = record.slices.back().entry;
    if (!entries.insert(name).second)
      refuse_manifest(cat(file_where, ": slice \"", printable_text(name), "\" appears twice"));
  }
  return record;
}

json meta_json(const CheckpointMeta& meta) {
  for (const auto& [name, value] : meta.scheduler)
    if (!std::isfinite(value)) bug(cat("scheduler state ", name, " is ", value));
  json value{{"ftrun_version", meta.ftrun_version},
             {"step", meta.step},
             {"skipped_steps", meta.skipped_steps},
             {"samples", meta.samples},
             {"tokens", meta.tokens},
             {"seed", meta.seed},
             {"scheduler", meta.scheduler},
             {"loss_scaler", nullptr},
             {"data_fingerprint", meta.data_fingerprint},
             {"model_fingerprint", meta.model_fingerprint},
             {"config_hash", meta.config_hash},
             {"topology", meta.topology},
             {"extra", meta.extra}};
  if (meta.loss_scaler) {
    const LossScalerState& scaler = *meta.loss_scaler;
    value["loss_scaler"] = {{"scale", scaler.scale},
                            {"iteration", scaler.iteration},
                            {"last_overflow", scaler.last_overflow},
                            {"hysteresis", scaler.hysteresis}};
  }
  return value;
}

std::optional<LossScalerState> parse_scaler(const json& meta, const std::string& where) {
  if (meta.contains("loss_scaler") && meta["loss_scaler"].is_null()) return std::nullopt;
  const json& value = json_object(meta, "loss_scaler", where);
  LossScalerState scaler;
  scaler.scale = json_number(value, "scale", where);
  scaler.iteration = json_int(value, "iteration", where);
  scaler.last_overflow = json_int(value, "last_overflow", where, -1);
  scaler.hysteresis = json_int(value, "hysteresis", where, INT64_MIN);
  return scaler;
}

CheckpointMeta parse_meta(const json& value, const std::string& where) {
  CheckpointMeta meta;
  meta.ftrun_version = json_text(value, "ftrun_version", where);
  meta.step = json_int(value, "step", where);
  meta.skipped_steps = json_int(value, "skipped_steps", where);
  meta.samples = json_int(value, "samples", where);
  meta.tokens = json_int(value, "tokens", where);
  meta.seed = json_unsigned(value, "seed", where);
  const json& scheduler = json_object(value, "scheduler", where);
  for (const auto& [name, unused] : scheduler.items())
    meta.scheduler[name] = json_number(scheduler, name.c_str(), where);
  meta.loss_scaler = parse_scaler(value, where);
  meta.data_fingerprint = json_text(value, "data_fingerprint", where);
  meta.model_fingerprint = json_text(value, "model_fingerprint", where);
  meta.config_hash = json_text(value, "config_hash", where);
  const json& topology = json_object(value, "topology", where);
  for (const auto& [name, unused] : topology.items())
    meta.topology[name] = json_int(topology, name.c_str(), where);
  const json& extra = json_object(value, "extra", where);
  for (const auto& [name, unused] : extra.items())
    meta.extra[name] = json_text(extra, name.c_str(), where);
  return meta;
}

std::string_view verify_content_checksum(std::string_view text, const std::string& path) {
  if (!text.starts_with(kOpening) || text.size() < kOpening.size() + kHashDigits)
    refuse_manifest(cat(path, ": does not begin as a checkpoint manifest"));
  const std::string_view recorded = text.substr(kOpening.size(), kHashDigits);
  const std::string_view content = text.substr(kOpening.size() + kHashDigits);
  const std::string computed = hex64(xxh3(content.data(), content.size()));
  if (computed != recorded)
    refuse_manifest(cat(path, ": its checksum is ", computed, ", it says ",
                        printable_text(recorded),
                        ": the manifest was changed or damaged after it was written"));
  return content;
}

std::string format_name(const char* format, int64_t number) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, static_cast<long long>(number));
  return text.data();
}

}  // namespace

StateSliceRecord slice_record(std::string tensor, std::string kind, DType dtype,
                              std::vector<int64_t> tensor_shape, Box box) {
  StateSliceRecord slice{.tensor = std::move(tensor),
                         .kind = std::move(kind),
                         .dtype = dtype,
                         .tensor_shape = std::move(tensor_shape),
                         .entry_shape = box.extent};
  slice.entry = whole_name(slice);
  if (box != whole_box(slice.tensor_shape)) {
    std::vector<std::string> ranges;
    for (size_t d = 0; d < box.extent.size(); ++d)
      ranges.push_back(cat(box.offset[d], ":", box.offset[d] + box.extent[d]));
    slice.entry += cat("[", join(ranges, ","), "]");
  }
  slice.box = std::move(box);
  return slice;
}

std::string part_text(const StateSliceRecord& slice) {
  return slice.entry.substr(whole_name(slice).size());
}

std::string rank_record_text(const RankRecord& record) {
  return record_lines(record);
}

RankRecord parse_rank_record(std::string_view text, const std::string& where) {
  return parse_record(parse_json_strict(text, where), where);
}

std::string manifest_text(const CheckpointManifest& manifest) {
  require(manifest.format == kCheckpointFormat, "the manifest has the format that is written");
  std::string rest = cat(
      "\",\n\"format\": ", kCheckpointFormat, ",\n\"serial\": ", manifest.serial,
      ",\n\"meta\": ", meta_json(manifest.meta).dump(1, ' ', false, json::error_handler_t::replace),
      ",\n\"files\": [");
  for (size_t i = 0; i < manifest.files.size(); ++i)
    rest += cat(i > 0 ? ",\n " : "\n ", record_lines(manifest.files[i]));
  rest += "\n]\n}\n";
  return cat(kOpening, hex64(xxh3(rest.data(), rest.size())), rest);
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& path) {
  verify_content_checksum(text, path);
  const json value = parse_json_strict(text, path);
  const int64_t format = json_int(value, "format", path);
  if (format != kCheckpointFormat)
    throw Error(ExitCode::kBadInput,
                cat(path, ": has checkpoint format ", format, ", but this ftrun reads format ",
                    kCheckpointFormat),
                "use the version of ftrun that wrote it");
  CheckpointManifest manifest;
  manifest.format = static_cast<int>(format);
  manifest.serial = json_int(value, "serial", path);
  manifest.meta = parse_meta(json_object(value, "meta", path), path);
  for (const json& item : json_array(value, "files", path))
    manifest.files.push_back(parse_record(item, path));
  for (size_t i = 0; i < manifest.files.size(); ++i)
    if (manifest.files[i].rank != static_cast<int>(i))
      refuse_manifest(
          cat(path, ": entry ", i, " of \"files\" is for rank ", manifest.files[i].rank));
  return manifest;
}

std::string step_folder_name(int64_t step) {
  return format_name("step-%08lld", step);
}

std::optional<int64_t> step_of_folder(std::string_view name) {
  constexpr std::string_view kStart = "step-";
  if (!name.starts_with(kStart)) return std::nullopt;
  const std::string_view digits = name.substr(kStart.size());
  int64_t step = -1;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool plain = result.ec == std::errc() && step >= 0 && step_folder_name(step) == name;
  return plain ? std::optional(step) : std::nullopt;
}

std::string rank_file_name(int rank) {
  return format_name("rank-%05lld.safetensors", rank);
}

}  // namespace ftrun

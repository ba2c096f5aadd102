#include "test_support.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/log.h"

#include <catch2/catch.hpp>

namespace ftrun::testing {
namespace {

float toy_value(size_t tensor, size_t kind, int64_t element, int version) {
  return static_cast<float>(version) + 0.25F * static_cast<float>(kind) +
         1e-3F * static_cast<float>(element) + 10.0F * static_cast<float>(tensor);
}

const std::vector<std::string> kKinds{"param", "exp_avg", "exp_avg_sq"};

std::vector<Box> flat_part(const Box& box, int count, int index) {
  return cut_box(box, box.numel() * index / count, box.numel() * (index + 1) / count);
}

/// Returns part `index` of `count` of a box along a dimension; empty if the dimension is shorter
/// than `count`.
std::vector<Box> part_along(Box box, size_t dimension, int count, int index) {
  const int64_t size = box.extent[dimension];
  box.offset[dimension] = size * index / count;
  box.extent[dimension] = size * (index + 1) / count - box.offset[dimension];
  if (box.numel() == 0) return {};
  return {box};
}

std::vector<Box> boxes_of_rank(const std::vector<int64_t>& shape, int world_size, int rank,
                               ToySplit split) {
  const Box whole = whole_box(shape);
  if (split == ToySplit::kFlat || shape.empty()) return flat_part(whole, world_size, rank);
  if (split == ToySplit::kRows) return part_along(whole, 0, world_size, rank);
  if (split == ToySplit::kColumns) return part_along(whole, shape.size() - 1, world_size, rank);
  std::vector<Box> boxes;
  for (const Box& half : part_along(whole, shape.size() - 1, 2, rank % 2))
    for (const Box& box : flat_part(half, world_size / 2, rank / 2)) boxes.push_back(box);
  return boxes;
}

}  // namespace

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  REQUIRE(out.good());
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

std::vector<std::string> run_ranks(int world_size,
                                   const std::function<void(const CheckpointGroup&)>& work) {
  const auto count = static_cast<size_t>(world_size);
  std::vector<std::string> texts(count);
  std::vector<std::string> errors(count);
  std::barrier together(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      const auto all_gather = [&, rank](const std::string& text) {
        texts[static_cast<size_t>(rank)] = text;
        together.arrive_and_wait();
        std::vector<std::string> all = texts;
        together.arrive_and_wait();
        return all;
      };
      try {
        work(CheckpointGroup{rank, world_size, all_gather});
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.message();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::string capture_log(const std::function<void()>& action) {
  const MemoryFolder folder;
  start_log({.file = folder / "log", .to_stderr = false});
  action();
  flush_log();
  const std::string text = read_text(folder / "log");
  start_log({.to_stderr = false});
  return text;
}

std::vector<std::pair<std::string, std::vector<int64_t>>> ToyState::tensors() {
  return {{"model.embed_tokens.weight", {13, 4}},
          {"model.layers.0.mlp.up_proj.weight", {5, 7}},
          {"model.norm.weight", {3}},
          {"scale", {}}};
}

ToyState::ToyState(int world_size, int rank, int version, ToySplit split)
    : world_size_(world_size), rank_(rank), split_(split) {
  const auto all = tensors();
  for (size_t t = 0; t < all.size(); ++t)
    for (size_t k = 0; k < kKinds.size(); ++k)
      for (const Box& box : boxes_of_rank(all[t].second, world_size, rank, split)) {
        Part part{{all[t].first, kKinds[k], DType::kF32, all[t].second, box, nullptr, nullptr}, {}};
        visit_runs(all[t].second, box, [&](int64_t begin, int64_t end, int64_t) {
          for (int64_t i = begin; i < end; ++i) part.values.push_back(toy_value(t, k, i, version));
        });
        parts_.push_back(std::move(part));
      }
}

std::vector<StateSlice> ToyState::slices() {
  std::vector<StateSlice> slices;
  for (Part& part : parts_) {
    part.slice.data = part.values.data();
    slices.push_back(part.slice);
  }
  return slices;
}

bool ToyState::equals(int version) const {
  const ToyState expected(world_size_, rank_, version, split_);
  for (size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].values != expected.parts_[i].values) return false;
  return !parts_.empty();
}

void ToyState::clear() {
  for (Part& part : parts_) std::fill(part.values.begin(), part.values.end(), -1.0F);
}

CheckpointMeta toy_meta(int64_t step, int world_size) {
  CheckpointMeta meta;
  meta.ftrun_version = "0.1.0";
  meta.step = step;
  meta.samples = step * 4;
  meta.tokens = step * 2048;
  meta.seed = 18446744073709551615U;
  meta.scheduler = {{"last_batch_iteration", static_cast<double>(step - 1)}, {"lr", 0.1}};
  meta.data_fingerprint = "d0d0";
  meta.model_fingerprint = "e1e1";
  meta.config_hash = "c2c2";
  meta.topology = {{"world_size", world_size}, {"data", world_size}};
  meta.extra = {{"note", "as it was"}};
  return meta;
}

}  // namespace ftrun::testing

#include "exec/model_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/tensors.h"
#include "program/step_builder.h"

namespace ftrun {

ModelState::ModelState(const ModelDescription& model, const Partition& partition,
                       const RankMemory& memory, std::vector<std::string> state_kinds)
    : model_(model), partition_(partition), layout_(step_layouts(partition).parameters) {
  kinds_.push_back("param");
  buffers_.push_back(reinterpret_cast<float*>(memory.persistent(buffer_names::kParameters)));
  for (size_t i = 0; i < state_kinds.size(); ++i) {
    kinds_.push_back(std::move(state_kinds[i]));
    buffers_.push_back(reinterpret_cast<float*>(
        memory.persistent(optimizer_buffer_name(static_cast<int32_t>(i)))));
  }
}

void ModelState::load(const ModelFolder& folder) {
  std::vector<std::pair<std::string, Dims>> found;
  for (const std::string& name : folder.names()) found.emplace_back(name, folder.at(name).shape);
  const std::vector<std::string> problems = check_tensors(model_, found);
  if (!problems.empty())
    throw Error(ExitCode::kBadInput,
                cat(folder.path(), ": the weights are not those of its config.json:\n  ",
                    join(problems, "\n  ")),
                "use the config.json and the weights of the same model");
  for (const Unit& unit : partition_.units) {
    for (const Slice& slice : unit.slices) {
      const std::string& name = model_.tensor(slice.tensor).name;
      float* to = buffers_[0] + layout_.at(unit.id) + slice.position_in_unit;
      folder.read_f32(name, slice.offset, slice.offset + slice.extent,
                      {to, static_cast<size_t>(slice.extent)});
      folder.release(name, slice.offset, slice.offset + slice.extent);
    }
  }
}

void ModelState::load(Checkpoint& checkpoint) {
  checkpoint.require_states(states());
  std::vector<StateSlice> all;
  for (const Unit& unit : partition_.units) append_slices(unit, 0, unit.padded, all);
  checkpoint.read(all);
  checkpoint.close_files();
}

std::vector<StateSlice> ModelState::slices(int rank, int ranks) const {
  std::vector<StateSlice> mine;
  for (const Unit& unit : partition_.units) {
    const ShardRange range = shard_range(unit, rank, ranks);
    append_slices(unit, range.begin, range.end, mine);
  }
  return mine;
}

void ModelState::append_slices(const Unit& unit, int64_t begin, int64_t end,
                               std::vector<StateSlice>& slices) const {
  for (const Slice& slice : slices_in(unit, begin, end)) {
    const TensorInfo& tensor = model_.tensor(slice.tensor);
    for (size_t k = 0; k < kinds_.size(); ++k)
      slices.push_back({tensor.name, kinds_[k], DType::kF32, tensor.shape, slice.offset,
                        slice.offset + slice.extent,
                        buffers_[k] + layout_.at(unit.id) + slice.position_in_unit});
  }
}

std::vector<StateInfo> ModelState::states() const {
  std::vector<StateInfo> all;
  for (const TensorInfo& tensor : model_.tensors)
    for (const std::string& kind : kinds_)
      all.push_back({tensor.name, kind, DType::kF32, tensor.shape});
  return all;
}

void ModelState::read(const std::string& tensor, int64_t begin, int64_t end,
                      std::span<float> out) const {
  for (const Unit& unit : partition_.units) {
    for (const Slice& slice : unit.slices) {
      if (model_.tensor(slice.tensor).name != tensor) continue;
      const int64_t from = std::max(begin, slice.offset);
      const int64_t to = std::min(end, slice.offset + slice.extent);
      if (from >= to) continue;
      const float* source =
          buffers_[0] + layout_.at(unit.id) + slice.position_in_unit + (from - slice.offset);
      std::memcpy(out.data() + (from - begin), source,
                  static_cast<size_t>(to - from) * sizeof(float));
    }
  }
}

}  // namespace ftrun

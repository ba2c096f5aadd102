#include "engine/model_state.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "axes/tensor/split.h"
#include "base/error.h"
#include "base/quantized_values.h"
#include "base/round_up.h"
#include "base/run_in_parallel.h"
#include "base/text.h"
#include "kernels/copy.h"
#include "kernels/kernels.h"
#include "partition/flat_layout.h"
#include "program/state_spec.h"

namespace ftrun {
namespace {

/// The number of elements that are copied through a buffer at a time if they cannot be read in
/// place.
constexpr int64_t kChunk = int64_t{1} << 20;
/// The number of elements of a quantized tensor that are quantized at a time: whole blocks.
constexpr int64_t kQuantizedPart = int64_t{1} << 18;

/// Returns a slice of this rank's part of a tensor as boxes of the whole tensor. In the unit these
/// lie one after another. If `block` > 1, `tensor` and the boxes count in blocks of `block`
/// elements.
std::vector<Box> boxes_of(const TensorInfo& tensor, const TensorSlice& slice, int64_t block) {
  return cut_box(tensor.local, slice.offset / block, divide_up(slice.offset + slice.extent, block));
}

/// Returns the blocks that a box of a tensor consists of.
Box blocked_box(const Dims& shape, const Box& box, int64_t block) {
  Box blocks = box;
  if (shape.back() % block == 0) {
    blocks.offset.back() /= block;
    blocks.extent.back() /= block;
    return blocks;
  }
  // The box consists of whole rows.
  const int64_t row = element_count(shape) / shape.front();
  return {{box.offset.front() * row / block}, {divide_up(box.numel(), block)}};
}

/// Counts the elements of `part` that lie before element `end` of the whole tensor.
int64_t elements_before(const Dims& shape, const Box& part, int64_t end) {
  int64_t count = 0;
  for (const Box& box : cut_box(whole_box(shape), 0, end))
    if (const std::optional<Box> shared = intersect_boxes(box, part)) count += shared->numel();
  return count;
}

/// TensorRun is elements [begin, end) of a tensor. They begin at `position` of the range that
/// runs_of() was given.
struct TensorRun {
  int64_t begin;
  int64_t end;
  int64_t position;
};

/// Lists elements [first, last) of a rank's part of a tensor, in as few runs as possible.
std::vector<TensorRun> runs_of(const TensorInfo& tensor, int64_t first, int64_t last) {
  std::vector<TensorRun> runs;
  visit_runs(tensor.shape, tensor.local, [&](int64_t begin, int64_t end, int64_t position) {
    const int64_t from = std::max(position, first), to = std::min(position + (end - begin), last);
    if (from < to)
      runs.push_back({begin + (from - position), begin + (to - position), from - first});
  });
  return runs;
}

/// BounceBuffer is memory for a chunk of kChunk elements, aligned for direct disk access.
class BounceBuffer {
 public:
  BounceBuffer()
      : block_(kChunk * dtype_bytes(DType::kF32) + 2 * kSwapAlignment, "loading state") {}
  std::byte* data() const { return block_.data(); }
  std::span<std::byte> sectors() const {
    return {block_.data(), static_cast<size_t>(block_.bytes())};
  }

 private:
  HostBlock block_;
};

}  // namespace

ModelState::ModelState(const StepPlan& plan, RankMemory& memory)
    : model_(plan.train.model),
      program_(plan.train.program),
      pieces_(plan.train.pieces),
      shardings_(plan.train.shardings),
      partition_(plan.partition),
      options_(plan.options.state),
      memory_(memory) {}

std::string ModelState::kind_of(int32_t state) const {
  return state < 0 ? "param" : options_.optimizer_states[static_cast<size_t>(state)].name;
}

DType ModelState::dtype(const UnitStatePiece& piece) const {
  return program_.at(piece.range.buffer).format.dtype;
}

DType ModelState::stored_dtype(const UnitStatePiece& piece) const {
  for (const UnitStatePiece& other : pieces_)
    if (other.state == (piece.state < 0 ? UnitStatePiece::kParam : piece.state) &&
        other.unit == piece.unit)
      return dtype(other);
  return dtype(piece);
}

const QuantizedFormat& ModelState::quantized(const UnitStatePiece& piece) const {
  return program_.at(piece.range.buffer).format.quantized;
}

/// Leaves out tensors that do not have the piece's state: a unit may have tensors with and without
/// it.
std::vector<TensorSlice> ModelState::slices_of(const UnitStatePiece& piece, int64_t begin,
                                               int64_t end) const {
  if (piece.straddling_tensor >= 0) return {{piece.straddling_tensor, begin, end - begin, begin}};
  std::vector<TensorSlice> slices = slices_in(partition_.unit(piece.unit), begin, end);
  if (piece.state < 0) return slices;
  std::erase_if(slices, [&](const TensorSlice& slice) {
    const TensorInfo& tensor = model_.tensor(slice.tensor);
    return !options_.has_state(tensor,
                               options_.optimizer_states[static_cast<size_t>(piece.state)]) ||
           (piece.block > 1 && straddles_blocks(tensor, slice));
  });
  return slices;
}

TensorInfo ModelState::stored_tensor(const UnitStatePiece& piece, TensorId id) const {
  TensorInfo stored = model_.tensor(id);
  if (piece.straddling_tensor >= 0) {
    stored.local = whole_box(stored.shape);
    stored.copies = 1;
  }
  if (piece.block == 1) return stored;
  stored.local = blocked_box(stored.shape, stored.local, piece.block);
  stored.shape = block_values_shape(stored.shape, piece.block);
  return stored;
}

int64_t ModelState::bytes_of(const UnitStatePiece& piece, int64_t elements) const {
  return stored_bytes(dtype(piece), quantized(piece), divide_up(elements, piece.block));
}

BufferRange ModelState::range_of(const UnitStatePiece& piece, int64_t begin, int64_t end) const {
  return {piece.range.buffer, piece.range.offset + bytes_of(piece, begin - piece.begin),
          bytes_of(piece, end - begin)};
}

/// Writes elements [begin, end) of the unit, converted from `source`. They are whole sectors if the
/// piece lies on disk. If it lies on disk or in GPU memory, `conversion_buffer` is the buffer of
/// the conversion.
void ModelState::write_elements(const UnitStatePiece& piece, int64_t begin, int64_t end,
                                DType source, const void* data, std::byte* conversion_buffer) {
  const BufferRange to = range_of(piece, begin, end);
  const bool converts = dtype(piece) != source;
  if (memory_.is_in_main_memory(program_, to)) {
    if (converts) return convert(data, source, memory_.at(program_, to), dtype(piece), end - begin);
    std::memcpy(memory_.at(program_, to), data, static_cast<size_t>(to.bytes));
    return;
  }
  if (converts) convert(data, source, conversion_buffer, dtype(piece), end - begin);
  const void* const stored = converts ? conversion_buffer : data;
  if (memory_.is_on_disk(program_, to))
    memory_.write_disk(program_, to, stored);
  else
    memory_.write(program_, to, stored);
}

/// Reads elements [begin, end) of the unit in their stored dtype. If they lie on disk and
/// `reading.of_snapshot` is set, reads the values of the snapshot.
void ModelState::read_elements(const UnitStatePiece& piece, int64_t begin, int64_t end, void* out,
                               StateReadOptions reading) const {
  const BufferRange from = range_of(piece, begin, end);
  if (!memory_.is_on_disk(program_, from)) return memory_.read(program_, from, out);
  std::optional<BounceBuffer> own;
  if (reading.sectors.empty()) reading.sectors = own.emplace().sectors();
  std::byte* const sectors_read = reading.sectors.data();
  auto* to = static_cast<std::byte*>(out);
  // Reads the sectors around the wanted bytes, as many at a time as the buffer holds.
  const auto sectors_bytes = static_cast<int64_t>(reading.sectors.size());
  for (int64_t at = from.offset; at < from.offset + from.bytes;) {
    const int64_t first = at / kSwapAlignment * kSwapAlignment;
    const int64_t last = std::min(from.offset + from.bytes, first + sectors_bytes);
    const BufferRange sectors{from.buffer, first, round_up_to_sector(last - first)};
    if (reading.of_snapshot)
      memory_.read_disk_snapshot(program_, sectors, sectors_read);
    else
      memory_.read_disk(program_, sectors, sectors_read);
    std::memcpy(to + (at - from.offset), sectors_read + (at - first),
                static_cast<size_t>(last - at));
    at = last;
  }
}

void ModelState::read_elements_f32(const UnitStatePiece& piece, int64_t begin, int64_t end,
                                   float* out, StateReadOptions reading) const {
  if (dtype(piece) == DType::kF32) return read_elements(piece, begin, end, out, reading);
  if (const QuantizedFormat& format = quantized(piece)) {
    const int64_t first = begin / kQuantizedRecord * kQuantizedRecord;
    std::vector<std::byte> records(static_cast<size_t>(format.bytes(end - first)));
    read_elements(piece, first, round_up(end, kQuantizedRecord), records.data(), reading);
    return dequantize_values(format, records.data(), begin - first,
                             {out, static_cast<size_t>(end - begin)});
  }
  std::vector<std::byte> raw(static_cast<size_t>((end - begin) * dtype_bytes(dtype(piece))));
  read_elements(piece, begin, end, raw.data(), reading);
  convert(raw.data(), dtype(piece), out, DType::kF32, end - begin);
}

/// Fills a piece, in place if its dtype and tier allow it, else chunk by chunk. Chunks set padding
/// to zero; in place it stays as it is.
void ModelState::fill_piece(const UnitStatePiece& piece, DType source, const ReadTensor& read) {
  const int64_t size = dtype_bytes(source);
  const auto fill_part = [&](int64_t begin, int64_t end, std::byte* to) {
    for (const TensorSlice& slice : slices_of(piece, begin, end)) {
      const TensorInfo tensor = stored_tensor(piece, slice.tensor);
      std::byte* at = to + (slice.position_in_unit - begin) / piece.block * size;
      for (const Box& box : boxes_of(tensor, slice, piece.block)) {
        read(piece, tensor, box, at);
        at += box.numel() * size;
      }
    }
  };
  if (dtype(piece) == source && memory_.is_in_main_memory(program_, piece.range))
    return fill_part(piece.begin, piece.end, memory_.at(program_, piece.range));
  const BounceBuffer bounce;
  const BounceBuffer converted;  // uses no memory until it is written
  for (int64_t begin = piece.begin; begin < piece.end; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, piece.end);
    std::memset(bounce.data(), 0, static_cast<size_t>((end - begin) * size));
    fill_part(begin, end, bounce.data());
    write_elements(piece, begin, end, source, bounce.data(), converted.data());
  }
}

ModelState::ReadTensor ModelState::make_reader(const InitialWeights& initial) const {
  return [&initial](const UnitStatePiece&, const TensorInfo& tensor, const Box& box, void* out) {
    auto* to = static_cast<float*>(out);
    int64_t from = tensor.numel();
    int64_t until = 0;
    visit_runs(tensor.shape, box, [&](int64_t begin, int64_t end, int64_t position) {
      from = std::min(from, begin);
      until = end;
      // Reads in chunks, because mapped pages count as memory of this process until they are
      // released.
      for (int64_t at = begin; at < end; at += kChunk) {
        const int64_t stop = std::min(at + kChunk, end);
        initial.read(tensor, at, stop,
                     {to + position + (at - begin), static_cast<size_t>(stop - at)});
        if (stop - at == kChunk) initial.release(tensor, at, stop);
      }
    });
    initial.release(tensor, from, until);
  };
}

/// Quantizes this rank's part of a quantized tensor, at most kQuantizedPart elements at a time,
/// with the scales of the whole tensor.
void ModelState::quantize_slice(const UnitStatePiece& piece, const TensorSlice& slice,
                                const InitialWeights& initial) {
  const QuantizedFormat& format = quantized(piece);
  const TensorInfo& tensor = model_.tensor(slice.tensor);
  std::vector<float> values(
      static_cast<size_t>(std::min(kQuantizedPart, std::max(tensor.numel(), slice.extent))));
  const auto read = [&](int64_t begin, int64_t end) {
    const std::span<float> some(values.data(), static_cast<size_t>(end - begin));
    initial.read(tensor, begin, end, some);
    initial.release(tensor, begin, end);
    return std::span<const float>(some);
  };
  const QuantizationScales scales = compute_quantization_scales(
      format, {tensor.name, tensor.numel(), tensor.shape.back()}, kQuantizedPart, read);
  std::vector<std::byte> records(static_cast<size_t>(format.bytes(kQuantizedPart)));
  for (int64_t at = slice.offset; at < slice.offset + slice.extent; at += kQuantizedPart) {
    const int64_t end = std::min(at + kQuantizedPart, slice.offset + slice.extent);
    std::fill(records.begin(), records.end(), std::byte{0});
    for (const TensorRun& run : runs_of(tensor, at, end))
      quantize_values(format, scales, run.begin, read(run.begin, run.end), run.position,
                      records.data());
    const int64_t in_unit = slice.position_in_unit + (at - slice.offset);
    const BufferRange to = range_of(piece, in_unit, in_unit + (end - at));
    if (memory_.is_in_main_memory(program_, to))
      std::memcpy(memory_.at(program_, to), records.data(), static_cast<size_t>(to.bytes));
    else
      memory_.write(program_, to, records.data());
  }
}

/// Fills a piece with the values that it has when training begins. Frozen state keeps these values.
void ModelState::fill_initial(const UnitStatePiece& piece, const InitialWeights& initial) {
  if (!quantized(piece)) return fill_piece(piece, DType::kF32, make_reader(initial));
  const std::vector<TensorSlice> slices =
      slices_in(partition_.unit(piece.unit), piece.begin, piece.end);
  if (memory_.is_in_main_memory(program_, piece.range)) {
    run_in_parallel(
        slices.size(), [&](size_t i) { quantize_slice(piece, slices[i], initial); },
        static_cast<size_t>(kernel_threads()));
    return;
  }
  for (const TensorSlice& slice : slices) quantize_slice(piece, slice, initial);
}

/// Fills an optimizer state with the number that it begins with. Its memory is zero already, so 0
/// needs no work.
void ModelState::fill_constant(const UnitStatePiece& piece, double number) {
  if (number == 0.0) return;
  fill_piece(piece, DType::kF32,
             [number](const UnitStatePiece&, const TensorInfo&, const Box& box, void* out) {
               std::fill_n(static_cast<float*>(out), box.numel(), static_cast<float>(number));
             });
}

/// Measures the row norms that are the initial DoRA magnitudes, for the pieces of this rank that
/// are filled from `initial` (`is_read`).
void ModelState::measure_row_norms(
    InitialWeights& initial, const std::function<bool(const UnitStatePiece&)>& is_read) const {
  std::map<TensorId, TensorPart> wanted;
  for (const UnitStatePiece& piece : pieces_) {
    if (!is_read(piece)) continue;
    for (const TensorSlice& slice :
         slices_in(partition_.unit(piece.unit), piece.begin, piece.end)) {
      const TensorInfo& tensor = model_.tensor(slice.tensor);
      if (tensor.initial.source != InitialSource::kRowNorms) continue;
      for (const TensorRun& run : runs_of(tensor, slice.offset, slice.offset + slice.extent)) {
        TensorPart& part =
            wanted.try_emplace(slice.tensor, TensorPart{&tensor, run.begin, run.end}).first->second;
        part.begin = std::min(part.begin, run.begin);
        part.end = std::max(part.end, run.end);
      }
    }
  }
  std::vector<TensorPart> parts;
  for (const auto& [id, part] : wanted) parts.push_back(part);
  initial.measure_row_norms(parts, static_cast<size_t>(kernel_threads()));
}

void ModelState::load(InitialWeights initial) {
  initial.check_fit(model_);
  measure_row_norms(initial, [](const UnitStatePiece& piece) { return piece.state < 0; });
  for (const UnitStatePiece& piece : pieces_) {
    if (piece.state < 0)
      fill_initial(piece, initial);
    else
      fill_constant(piece,
                    options_.optimizer_states[static_cast<size_t>(piece.state)].initial_value);
  }
  ::malloc_trim(0);  // returns the freed buffers of reading to the system: steps do not need them
}

std::vector<StateDtypeChange> ModelState::load(Checkpoint& checkpoint, InitialWeights initial) {
  std::vector<StateDtypeChange> conversions = checkpoint.check_states(states());
  initial.check_fit(model_);
  measure_row_norms(initial, [&](const UnitStatePiece& piece) { return !trains(piece); });
  const ReadTensor read = [&](const UnitStatePiece& piece, const TensorInfo& tensor, const Box& box,
                              void* out) {
    checkpoint.read(
        StateSlice{tensor.name, kind_of(piece.state), stored_dtype(piece), tensor.shape, box, out});
  };
  for (const UnitStatePiece& piece : pieces_) {
    if (trains(piece))
      fill_piece(piece, stored_dtype(piece), read);
    else
      fill_initial(piece, initial);
  }
  checkpoint.close_files();
  ::malloc_trim(0);  // as above
  return conversions;
}

std::vector<StateSlice> ModelState::slices(std::span<std::byte> sectors) const {
  return saved_slices({.sectors = sectors});
}

/// Takes a snapshot. State on disk is not copied: its present bytes are kept, and later writes go
/// elsewhere on the disk.
std::vector<StateSlice> ModelState::take_snapshot(std::span<std::byte> sectors) {
  std::vector<CopiedRange> in_main_memory;
  for (const UnitStatePiece& piece : pieces_) {
    if (piece.snapshot.bytes == 0) continue;
    const BufferRange from = range_of(piece, piece.saved.begin, piece.saved.end);
    std::byte* const to = memory_.at(program_, piece.snapshot);
    if (memory_.is_in_main_memory(program_, from))
      in_main_memory.push_back({to, memory_.at(program_, from), from.bytes});
    else
      memory_.read(program_, from, to);
  }
  copy_streamed(in_main_memory);
  memory_.begin_disk_snapshot();
  return saved_slices({.of_snapshot = true, .sectors = sectors});
}

void ModelState::populate_snapshot() const {
  const BufferId buffer = find_persistent_buffer(program_, PersistentKind::kSnapshot, Tier::kHost);
  if (buffer >= 0) memory_.allocate_pages(program_, buffer);
}

void ModelState::release_snapshot() {
  memory_.end_disk_snapshot();
}

std::vector<StateSlice> ModelState::saved_slices(StateReadOptions reading) const {
  std::vector<StateSlice> own_slices;
  for (const UnitStatePiece& piece : pieces_) {
    if (piece.saved.size() == 0) continue;
    for (const TensorSlice& slice : slices_of(piece, piece.saved.begin, piece.saved.end)) {
      const TensorInfo tensor = stored_tensor(piece, slice.tensor);
      if (model_.split.index % tensor.copies != 0) continue;
      int64_t first = slice.position_in_unit;
      for (const Box& box : boxes_of(tensor, slice, piece.block)) {
        own_slices.push_back(saved_slice(piece, tensor, box, first, reading));
        first += box.numel() * piece.block;
      }
    }
  }
  return own_slices;
}

/// Makes the StateSlice of `box` of the tensor, which begins at element `first` of the unit.
/// It refers to the state itself, or to the copy in the snapshot.
StateSlice ModelState::saved_slice(const UnitStatePiece& piece, const TensorInfo& tensor,
                                   const Box& box, int64_t first, StateReadOptions reading) const {
  StateSlice saved{tensor.name, kind_of(piece.state), dtype(piece), tensor.shape, box};
  const BufferRange range = range_of(piece, first, first + box.numel() * piece.block);
  if (reading.of_snapshot && !memory_.is_on_disk(program_, range)) {
    if (piece.snapshot.bytes <= 0) bug(cat("the snapshot has no space for ", tensor.name));
    saved.data = memory_.at(program_, piece.snapshot) + bytes_of(piece, first - piece.saved.begin);
  } else if (memory_.is_in_main_memory(program_, range)) {
    saved.data = memory_.at(program_, range);
  } else {
    saved.read = [this, &piece, first, reading](int64_t begin, int64_t end, void* out) {
      read_elements(piece, first + begin * piece.block, first + end * piece.block, out, reading);
    };
  }
  return saved;
}

std::vector<StateInfo> ModelState::states() const {
  std::vector<StateInfo> all;
  for (const StoredState& saved : list_stored_states(model_, partition_, options_)) {
    const TensorInfo& tensor = model_.tensor(saved.tensor);
    all.push_back({tensor.name, kind_of(saved.state), saved.dtype,
                   block_values_shape(tensor.shape, saved.block)});
  }
  return all;
}

void ModelState::gather_elements(const std::string& tensor, int64_t begin, int64_t end,
                                 bool receives, Communicator& group, std::span<float> out,
                                 std::span<std::byte> sectors) const {
  const auto found = std::find_if(model_.tensors.begin(), model_.tensors.end(),
                                  [&](const TensorInfo& info) { return info.name == tensor; });
  require(found != model_.tensors.end(), "the model has this tensor");
  const auto id = static_cast<TensorId>(found - model_.tensors.begin());
  const auto [unit, start] = location_of(id);
  std::vector<float> room;
  const int split = shardings_[static_cast<size_t>(unit->id)].split_ranks;
  for (int index = 0; index < split; index += found->copies) {
    const Box part = box_of_rank(*found, index);
    const UnitRange wanted{elements_before(found->shape, part, begin),
                           elements_before(found->shape, part, end)};
    if (wanted.size() == 0) continue;
    const UnitRange in_unit{start + wanted.begin, start + wanted.end};
    if (part == whole_box(found->shape)) {
      gather_part(*unit, index, in_unit, receives, group, out, sectors);
      continue;
    }
    room.resize(receives ? static_cast<size_t>(wanted.size()) : 0);
    gather_part(*unit, index, in_unit, receives, group, room, sectors);
    if (!receives) continue;
    const float* from = room.data();
    for (const Box& box : cut_box(part, wanted.begin, wanted.end)) {
      visit_runs(found->shape, box, [&](int64_t first, int64_t last, int64_t position) {
        std::copy_n(from + position, last - first, out.data() + (first - begin));
      });
      from += box.numel();
    }
  }
}

int64_t ModelState::gather_bytes(int64_t elements) const {
  const bool divided =
      std::any_of(shardings_.begin(), shardings_.end(),
                  [](const UnitSharding& sharding) { return sharding.split_ranks > 1; });
  int64_t bytes = 0;
  for (const UnitStatePiece& piece : pieces_)
    if (piece.state == UnitStatePiece::kParam && dtype(piece) != DType::kF32)
      bytes = std::max(bytes, quantized(piece) ? quantized(piece).bytes(elements + kQuantizedRecord)
                                               : elements * dtype_bytes(dtype(piece)));
  return bytes + (divided ? elements * dtype_bytes(DType::kF32) : 0);
}

/// Returns the parameters of a unit that this rank holds.
const UnitStatePiece& ModelState::parameters_of(UnitId unit) const {
  for (const UnitStatePiece& piece : pieces_)
    if (piece.state == UnitStatePiece::kParam && piece.unit == unit) return piece;
  bug(cat("this rank holds no parameters of unit ", unit));
}

/// Returns the unit of a tensor, and the element of the unit where the tensor begins.
std::pair<const Unit*, int64_t> ModelState::location_of(TensorId tensor) const {
  for (const Unit& unit : partition_.units)
    for (const TensorSlice& slice : unit.slices)
      if (slice.tensor == tensor) {
        require(slice.offset == 0, "a tensor lies in its unit as one slice");
        return {&unit, slice.position_in_unit};
      }
  bug("every tensor is in a unit");
}

/// Collects the elements `wanted` of a unit from the ranks that hold shards of it. `index` selects
/// the part of the model: it is the index among the tensor-parallel ranks that divide the unit's
/// tensors.
void ModelState::gather_part(const Unit& unit, int index, const UnitRange& wanted, bool receives,
                             Communicator& group, std::span<float> out,
                             std::span<std::byte> sectors) const {
  const StateReadOptions reading{.sectors = sectors};
  const UnitSharding& sharding = shardings_[static_cast<size_t>(unit.id)];
  std::vector<float> sent;
  for (int part = 0; part < sharding.parts; ++part) {
    const UnitRange theirs = shard_range(unit, part, sharding.parts);
    const int64_t from = std::max(wanted.begin, theirs.begin);
    const int64_t to = std::min(wanted.end, theirs.end);
    const int owner = sharding.rank(part, index);
    if (from >= to || (!receives && owner != group.rank())) continue;
    float* there = receives ? out.data() + (from - wanted.begin) : nullptr;
    if (owner != group.rank()) {
      group.receive(there, to - from, DType::kF32, owner, {"export"}).wait();
    } else if (receives) {
      read_elements_f32(parameters_of(unit.id), from, to, there, reading);
    } else {
      sent.resize(static_cast<size_t>(to - from));
      read_elements_f32(parameters_of(unit.id), from, to, sent.data(), reading);
      group.send(sent.data(), to - from, DType::kF32, 0, {"export"}).wait();
    }
  }
}

}  // namespace ftrun

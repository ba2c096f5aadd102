#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/passes.h"

namespace ftrun {
namespace {

/// Number of device buffers that the offloaded outputs of layers use in turn. While a layer writes
/// its output to one buffer, the two outputs before it may still be on their way to the host. If
/// each output had its own buffer, all buffers would stay allocated until backward.
constexpr size_t kDeviceBuffers = 3;

/// OutputUses holds the plain instructions that touch each output, by buffer, and the first
/// backward instruction of each micro-batch. One pass over the program finds them all, because
/// there may be thousands of outputs.
struct OutputUses {
  std::map<BufferId, std::vector<size_t>> users;
  std::map<int32_t, size_t> begin_of_backward;
};

OutputUses find_output_uses(const Program& program,
                            const std::vector<std::vector<BufferId>>& outputs) {
  OutputUses uses;
  for (const std::vector<BufferId>& of_micro_batch : outputs)
    for (const BufferId output : of_micro_batch) uses.users[output];
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.runs_ops() && instr.kind != InstrKind::kForward)
      uses.begin_of_backward.try_emplace(instr.micro_batch, i);
    for (const auto* ranges : {&instr.reads, &instr.writes})
      for (const BufferRange& range : *ranges)
        if (const auto found = uses.users.find(range.buffer); found != uses.users.end())
          if (found->second.empty() || found->second.back() != i) found->second.push_back(i);
  }
  return uses;
}

/// Selects the outputs of one micro-batch that backward reads. Outputs below the first trained
/// layer are not read.
std::vector<BufferId> select_read_in_backward(const std::vector<BufferId>& outputs,
                                              const OutputUses& uses, const Program& program) {
  std::vector<BufferId> read;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(read), [&](BufferId output) {
    const std::vector<size_t>& users = uses.users.at(output);
    const auto begin = uses.begin_of_backward.find(program.instrs[users.front()].micro_batch);
    return begin != uses.begin_of_backward.end() && users.back() >= begin->second;
  });
  return read;
}

/// OutputOffload moves the outputs of one micro-batch to the host and back.
class OutputOffload {
 public:
  OutputOffload(Program& program, const std::vector<BufferId>& outputs, const OutputUses& uses,
                bool last_stays)
      : program_(program), outputs_(outputs), uses_(uses), last_stays_(last_stays) {
    for (const BufferId output : outputs)
      require(program.at(output).bytes == program.at(outputs[0]).bytes,
              "the outputs of all layers have the same size");
  }

  std::vector<Insertion> run() {
    for (size_t k = 0; k < outputs_.size(); ++k) {
      const std::vector<size_t>& users = uses_.users.at(outputs_[k]);
      backward_ = uses_.begin_of_backward.at(program_.instrs[users[0]].micro_batch);
      offload_output(k, users);
    }
    return std::move(insertions_);
  }

 private:
  void offload_output(size_t k, const std::vector<size_t>& users) {
    const bool stays = last_stays_ && k + 1 == outputs_.size();
    const BufferId output = outputs_[k];
    // An output from another stage may arrive early, when the slot is still in use.
    const bool arrives = program_.instrs[users[0]].kind == InstrKind::kReceive;
    const BufferId slot = arrives ? output : outputs_[k % kDeviceBuffers];
    const BufferId restored = stays ? slot : add_restored_buffer(output, slot);
    size_t forward_end = 0;
    size_t backward_begin = BufferUse::kNone;
    for (const size_t i : users) {
      const bool forward = i < backward_;
      replace_buffer(program_.instrs[i], output, forward ? slot : restored);
      if (forward) forward_end = i;
      if (!forward) backward_begin = std::min(backward_begin, i);
    }
    if (stays) return;
    const BufferId host = add_copy_of(output, "hidden_on_host", Tier::kHost);
    insertions_.push_back(
        {.plain_instr = forward_end, .is_after = true, .instrs = {make_full_copy(slot, host)}});
    // The copy back to the device overlaps the backward pass of the layer that runs just before the
    // reader.
    insertions_.push_back({.plain_instr = begin_of_run_before(backward_begin),
                           .waits_for_compute = true,
                           .instrs = {make_full_copy(host, restored)}});
  }

  BufferId add_restored_buffer(BufferId output, BufferId slot) {
    const BufferId restored = add_copy_of(output, "hidden_again", Tier::kDevice);
    if (output == slot) return restored;
    std::swap(program_.buffers[static_cast<size_t>(output)], program_.buffers.back());
    program_.buffers.pop_back();
    return output;
  }

  /// Adds a buffer like `original`: "hidden.3.0" -> "hidden_on_host.3.0".
  BufferId add_copy_of(BufferId original, const std::string& name, Tier tier) {
    Buffer buffer = program_.at(original);
    buffer.name = name + buffer.name.substr(buffer.name.find('.'));
    buffer.tier = tier;
    buffer.peer_visible = buffer.peer_visible && tier == Tier::kDevice;
    return program_.add(std::move(buffer));
  }

  Instr make_full_copy(BufferId from, BufferId to) const {
    return make_copy(program_, program_.full_range(from), program_.full_range(to));
  }

  /// Finds the first of the consecutive instructions that belong to the same layer as instruction
  /// `i`.
  size_t begin_of_run(size_t i) const {
    const int32_t layer = program_.instrs[i].layer;
    while (i > backward_ && program_.instrs[i - 1].layer == layer) --i;
    return i;
  }
  /// Finds the first instruction of the layer that runs just before the layer of instruction `i`.
  size_t begin_of_run_before(size_t i) const {
    const size_t begin = begin_of_run(i);
    return begin == backward_ ? begin : begin_of_run(begin - 1);
  }

  Program& program_;
  const std::vector<BufferId>& outputs_;
  const OutputUses& uses_;
  const bool last_stays_;
  /// The first instruction of the micro-batch's backward.
  size_t backward_ = 0;
  std::vector<Insertion> insertions_;
};

}  // namespace

std::vector<Insertion> offload_outputs(Program& program,
                                       const std::vector<std::vector<BufferId>>& outputs,
                                       bool last_stays) {
  const OutputUses uses = find_output_uses(program, outputs);
  std::vector<Insertion> insertions;
  for (const std::vector<BufferId>& of_micro_batch : outputs)
    for (Insertion& insertion :
         OutputOffload(program, select_read_in_backward(of_micro_batch, uses, program), uses,
                       last_stays)
             .run())
      insertions.push_back(std::move(insertion));
  return insertions;
}

}  // namespace ftrun

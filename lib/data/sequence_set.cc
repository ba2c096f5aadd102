#include "data/sequence_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/amount_text.h"
#include "base/error.h"
#include "base/text.h"

namespace ftrun {
namespace {

TokenFileOptions file_options(const SequenceSetOptions& options) {
  TokenFileOptions files = header_options(options);
  files.end_of_document = options.end_of_document;
  files.find_documents = options.packing != SequencePacking::kConcat;
  return files;
}

int64_t checked_length(const SequenceSetOptions& options) {
  if (options.sequence_length < 1 || options.sequence_length > (int64_t{1} << 30))
    throw Error(ExitCode::kUsage,
                cat("data.sequence_length is ", options.sequence_length, ", expected 1 to 2^30"),
                "set it to the number of tokens that a sequence should have, such as 2048");
  return options.sequence_length;
}

}  // namespace

TokenFileOptions header_options(const SequenceSetOptions& options) {
  return {.format = options.format, .dtype = options.dtype};
}

SequenceSet::SequenceSet(const std::vector<std::string>& paths, const SequenceSetOptions& options)
    : data_(paths, file_options(options)),
      table_(data_, options.packing, checked_length(options), !options.weights.empty()),
      sequence_padding_(options.sequence_padding) {
  require(options.weights.empty() || options.weights.size() == paths.size(),
          "there is a weight for each data set");
  refuse_unusable();
  if (!options.weights.empty()) count_epoch_sequences(options.weights);
}

/// Counts the sequences of each set that an epoch uses. The set with the most trained tokens, T, is
/// used once as a whole. Set i contributes T * weight_i / weight trained tokens, where `weight` is
/// that of the largest set; one of its S_i sequences holds T_i / S_i trained tokens on average.
void SequenceSet::count_epoch_sequences(const std::vector<double>& weights) {
  std::vector<DocumentPiece> pieces;
  PackScratch scratch;
  const std::vector<int64_t>& begins = table_.first_sequences();
  for (size_t set = 0; set < weights.size(); ++set) {
    int64_t tokens = 0;
    for (int64_t sequence = begins[set]; sequence < begins[set + 1]; ++sequence)
      tokens += table_.count_labels(sequence, pieces, scratch);
    if (tokens == 0) {
      const int64_t set_tokens = data_.path_tokens()[set + 1] - data_.path_tokens()[set];
      throw Error(ExitCode::kBadInput,
                  cat("data set ", set + 1, " of the ", weights.size(),
                      " in data.train has nothing to train on: ", set_tokens, " tokens make ",
                      count_text(begins[set + 1] - begins[set], "sequence"), " of ",
                      sequence_length(), ", and none of their labels counts"),
                  "remove it from data.train, lower data.sequence_length, or prepare it again with "
                  "labels that count");
    }
    trained_tokens_of_sets_.push_back(tokens);
    mixed_sets_.push_back({begins[set + 1] - begins[set], 0});
  }
  const auto largest = static_cast<size_t>(
      std::max_element(trained_tokens_of_sets_.begin(), trained_tokens_of_sets_.end()) -
      trained_tokens_of_sets_.begin());
  for (size_t set = 0; set < weights.size(); ++set) {
    const double tokens =
        static_cast<double>(trained_tokens_of_sets_[largest]) * (weights[set] / weights[largest]);
    const double used_sequences = tokens * static_cast<double>(mixed_sets_[set].sequences) /
                                  static_cast<double>(trained_tokens_of_sets_[set]);
    if (used_sequences > 1e12)
      throw Error(
          ExitCode::kUsage,
          cat("the weight ", number_text(weights[set]), " of data set ", set + 1,
              " in data.train, compared with ", number_text(weights[largest]),
              " for the largest, makes an epoch of ", number_text(used_sequences), " sequences"),
          "give the largest data set more weight");
    mixed_sets_[set].epoch_sequences = set == largest
                                           ? mixed_sets_[set].sequences
                                           : std::max<int64_t>(std::llround(used_sequences), 1);
  }
}

MixedOrder SequenceSet::make_order(bool shuffle, uint64_t seed, int64_t epoch_sequences) const {
  if (mixed_sets_.empty()) return SequenceOrder(size(), shuffle, seed, epoch_sequences);
  return {mixed_sets_, shuffle, seed, epoch_sequences};
}

/// Throws an error if no label of the data counts. This is fast: it stops at the first sequence
/// with one.
void SequenceSet::refuse_unusable() const {
  const int64_t length = sequence_length();
  const bool concat = table_.packing() == SequencePacking::kConcat;
  if (concat && size() == 0)
    throw Error(ExitCode::kBadInput,
                cat(data_.name(), ": has ", data_.tokens(), " tokens; one sequence of length ",
                    length, " needs ", length + 1),
                "lower data.sequence_length, or use more text");
  std::vector<DocumentPiece> pieces;
  PackScratch scratch;
  for (int64_t sequence = 0; sequence < size(); ++sequence)
    if (table_.count_labels(sequence, pieces, scratch) > 0) return;
  throw Error(ExitCode::kBadInput,
              cat(data_.name(), ": none of its ", data_.tokens(),
                  " tokens counts in the loss: there is nothing to train on"),
              data_.all_trained()
                  ? "write the data again with documents of at least two tokens each"
                  : "write the data again and mask only the prompts: now every label is masked");
}

int64_t SequenceSet::epoch_sequences(int64_t global_batch, bool drop_last) const {
  require(global_batch >= 1, "the global batch is at least 1");
  int64_t sequences = mixed_sets_.empty() ? size() : 0;
  for (const MixedDataSet& set : mixed_sets_) sequences += set.epoch_sequences;
  if (!drop_last) return sequences;
  if (sequences < global_batch)
    throw Error(ExitCode::kBadInput,
                cat(data_.name(), ": gives ", count_text(sequences, "sequence"),
                    ", fewer than one global batch of ", global_batch,
                    ", and dataloader_drop_last leaves out what does not fill one"),
                "set dataloader_drop_last: false, use a smaller batch, or use more text");
  return sequences - sequences % global_batch;
}

int64_t SequenceSet::steps_for_epochs(double epochs, int64_t global_batch, bool drop_last) const {
  const auto sequences = static_cast<double>(epoch_sequences(global_batch, drop_last));
  return static_cast<int64_t>(std::ceil(epochs * sequences / static_cast<double>(global_batch)));
}

std::vector<std::string> mix_lines(const SequenceSet& sequences) {
  const std::vector<MixedDataSet>& mix = sequences.mixed_sets();
  std::vector<double> tokens;
  for (size_t set = 0; set < mix.size(); ++set)
    tokens.push_back(static_cast<double>(sequences.trained_tokens_of_sets()[set]) *
                     static_cast<double>(mix[set].epoch_sequences) /
                     static_cast<double>(mix[set].sequences));
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  std::vector<std::string> lines;
  for (size_t set = 0; set < mix.size(); ++set)
    lines.push_back(cat(
        "data set ", set + 1, " of ", mix.size(), ": ",
        number_text(std::round(1000 * tokens[set] / all) / 10), "% of the tokens trained on, seen ",
        number_text(std::round(100.0 * static_cast<double>(mix[set].epoch_sequences) /
                               static_cast<double>(mix[set].sequences)) /
                    100),
        " times per epoch"));
  return lines;
}

}  // namespace ftrun

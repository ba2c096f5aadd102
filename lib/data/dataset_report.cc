#include "data/dataset_report.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>

#include "base/amount_text.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "data/conversations.h"
#include "data/fingerprint.h"

namespace ftrun {
namespace {

constexpr size_t kMaxProblems = 20;
constexpr int64_t kScannedTokens = int64_t{1} << 20;

/// Finds the document that contains token `token`.
int64_t find_document(const TokenDataset& data, int64_t token) {
  int64_t low = 0, high = data.documents();  // start(low) <= token < start(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (data.document_start(middle) <= token ? low : high) = middle;
  }
  return low;
}

std::string token_position_text(const SequenceSet& sequences, int64_t token) {
  const TokenLocation location = sequences.data().locate(token);
  std::string text = location.file + ": ";
  if (sequences.table().packing() == SequencePacking::kConcat) {
    const int64_t length = sequences.sequence_length();
    const int64_t sequence = std::min(token / length, sequences.size() - 1);
    text += cat("sequence ", sequence, ", token ", token - sequence * length);
  } else {
    const int64_t document = find_document(sequences.data(), token);
    text +=
        cat("document ", document, ", token ", token - sequences.data().document_start(document));
  }
  const std::string line = location.line > 0 ? cat("line ", location.line, ", ") : "";
  return text + cat(" (", line, "file offset ", location.offset, ")");
}

int64_t count_long_documents(const SequenceSet& sequences) {
  if (sequences.table().packing() == SequencePacking::kConcat) return 0;
  const TokenDataset& data = sequences.data();
  int64_t count = 0;
  for (int64_t d = 0; d < data.documents(); ++d)
    count += data.document_start(d + 1) - data.document_start(d) > sequences.sequence_length() + 1;
  return count;
}

class IdScan {
 public:
  IdScan(const SequenceSet& sequences, int64_t vocab_rows, DataReport& report)
      : sequences_(sequences), vocab_rows_(vocab_rows), report_(report) {}

  void run() {
    const TokenDataset& data = sequences_.data();
    DataStatistics& s = report_.statistics;
    s.tokens = data.tokens();
    s.documents = data.documents();
    s.trained_tokens = data.count_trained(0, s.tokens);
    s.min_id = INT32_MAX;
    for (int64_t at = 0; at < s.tokens; at += kScannedTokens)
      scan_chunk(at, std::min(kScannedTokens, s.tokens - at));
    if (report_.bad_ids > static_cast<int64_t>(kMaxProblems))
      report_.problems.push_back(cat("and ", report_.bad_ids - static_cast<int64_t>(kMaxProblems),
                                     " more ids outside the model's vocabulary of ", vocab_rows_,
                                     " ids"));
  }

 private:
  void scan_chunk(int64_t first, int64_t count) {
    ids_.resize(static_cast<size_t>(count));
    labels_.resize(static_cast<size_t>(count));
    sequences_.data().read(first, ids_, labels_, scratch_);
    for (size_t i = 0; i < ids_.size(); ++i) {
      const int64_t token = first + static_cast<int64_t>(i);
      const int32_t id = ids_[i], label = labels_[i];
      DataStatistics& s = report_.statistics;
      s.min_id = std::min<int64_t>(s.min_id, id);
      s.max_id = std::max<int64_t>({s.max_id, id, label});
      if (id < 0 || id >= vocab_rows_)
        add_problem(token, sequences_.data().locate(token).value);
      else if (label != kIgnoredLabel && (label < 0 || label >= vocab_rows_))
        add_problem(token, label);
    }
  }

  void add_problem(int64_t token, int64_t value) {
    ++report_.bad_ids;
    if (report_.problems.size() >= kMaxProblems) return;
    report_.problems.push_back(cat(token_position_text(sequences_, token), ": id ", value,
                                   " is outside the model's vocabulary of ", vocab_rows_, " ids"));
  }

  const SequenceSet& sequences_;
  const int64_t vocab_rows_;
  DataReport& report_;
  std::vector<int32_t> ids_, labels_;
  ReadScratch scratch_;
};

constexpr const char* kDataSet = "data set";
constexpr const char* kRecorded = "recorded";

void describe_lengths(const TokenFile& file, DatasetFacts& facts) {
  if (file.documents() == 0) return;
  int64_t shortest = file.tokens(), longest = 0;
  for (int64_t d = 0; d < file.documents(); ++d) {
    const int64_t length = file.document_start(d + 1) - file.document_start(d);
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
  }
  facts.emplace_back("documents",
                     cat(file.documents(), " (shortest ", shortest, ", mean ",
                         file.tokens() / file.documents(), ", longest ", longest, " tokens)"));
}

void describe_mask(const TokenFile& file, DatasetFacts& facts) {
  if (file.loss_mask().all_trained()) {
    facts.emplace_back("loss mask", "none: every token counts");
    return;
  }
  const int64_t trained = file.loss_mask().count_trained(0, file.tokens());
  const double percent = 100.0 * static_cast<double>(trained) /
                         static_cast<double>(std::max<int64_t>(file.tokens(), 1));
  facts.emplace_back(
      "loss mask",
      cat(trained, " of ", file.tokens(), " tokens count (",
          number_text(static_cast<double>(static_cast<int64_t>(percent * 10)) / 10), "%)"));
}

void describe_first_ids(const TokenFile& file, DatasetFacts& facts) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(file.tokens(), 16)));
  std::vector<int32_t> labels(ids.size());
  ReadScratch scratch;
  file.read(0, ids, labels, scratch);
  facts.emplace_back("first ids", join_numbers(ids, " "));
}

void describe_file(const TokenFile& file, DatasetFacts& facts) {
  facts.emplace_back(kDataSet, file.path());
  facts.emplace_back("format", file.format());
  for (const DataSetFile& listed : file.list_files()) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(listed.path, error));
    facts.emplace_back("file", cat(listed.path, " (", listed.role, ", ", human_bytes(bytes), ")"));
  }
  facts.emplace_back("tokens", std::to_string(file.tokens()));
  describe_lengths(file, facts);
  describe_mask(file, facts);
  describe_first_ids(file, facts);
  for (const std::string& note : file.opening_notices()) facts.emplace_back("note", note);
}

void add_problem(DataReport& report, const Error& error) {
  report.problems.emplace_back(error.what());
  report.has_remedy |= !error.remedy().empty();
}

}  // namespace

DataReport check_dataset(const std::vector<std::string>& paths, const SequenceSetOptions& options,
                         int64_t vocab_rows, std::optional<int64_t> whole_batch) {
  const auto begin = std::chrono::steady_clock::now();
  DataReport report;
  try {
    const SequenceSet sequences(paths, options);
    for (const Error& error : check_conversation_lengths(paths, options))
      add_problem(report, error);
    report.sequences = sequences.size();
    report.packing = options.packing;
    report.mix_lines = mix_lines(sequences);
    report.notices = sequences.data().opening_notices();
    report.long_documents = count_long_documents(sequences);
    report.dropped_pieces = sequences.table().dropped_pieces();
    report.padding_share =
        1.0 - static_cast<double>(sequences.table().filled_positions()) /
                  static_cast<double>(sequences.size() * sequences.sequence_length());
    IdScan(sequences, vocab_rows, report).run();
    if (whole_batch) sequences.epoch_sequences(*whole_batch, true);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadInput) throw;
    add_problem(report, error);
  }
  report.seconds = seconds_since(begin);
  return report;
}

std::string data_report_text(const DataReport& report) {
  std::ostringstream out;
  for (const std::string& problem : report.problems) out << "problem: " << problem << "\n";
  const DataStatistics& s = report.statistics;
  if (s.tokens > 0) {
    out << s.tokens << " tokens in " << s.documents << " documents, " << s.trained_tokens
        << " count in the loss; ids " << s.min_id << " to " << s.max_id << "\n"
        << count_text(report.sequences, "sequence") << ", "
        << number_text(static_cast<double>(static_cast<int64_t>(report.padding_share * 1000)) / 10)
        << "% padding";
    if (report.long_documents > 0)
      out << ", " << report.long_documents << " documents longer than a sequence "
          << (report.packing == SequencePacking::kNone ? "cut" : "split");
    out << "\n";
    for (const std::string& line : report.mix_lines) out << line << "\n";
    for (const std::string& note : report.notices) out << "notice: " << note << "\n";
    if (report.dropped_pieces > 0)
      out << "warning: " << report.dropped_pieces
          << (report.packing == SequencePacking::kNone ? " documents"
                                                       : " documents, or pieces of them,")
          << " left out: none of their labels counts in the loss\n";
  }
  return out.str();
}

DatasetFacts dataset_facts(const std::string& path, const TokenFileOptions& options) {
  const TokenDataset data({path}, options);
  DatasetFacts facts;
  for (const auto& file : data.files()) describe_file(*file, facts);
  const auto recorded = recorded_fingerprint(data);
  const DataStatistics s = recorded ? recorded->statistics : DataStatistics{};
  facts.emplace_back(
      kRecorded, recorded
                     ? cat("fingerprint ", recorded->digest, ", ", s.documents, " documents, ids ",
                           s.min_id, " to ", s.max_id)
                     : "nothing current (no .json of prepare_data.py next to it, or files were "
                       "copied or changed since)");
  return facts;
}

std::string dataset_text(const DatasetFacts& facts) {
  constexpr size_t kValues = 13;
  std::string text;
  for (const auto& [name, value] : facts) {
    std::string column = name == kDataSet ? "" : name == kRecorded ? name : "  " + name;
    if (!column.empty()) column.resize(kValues, ' ');
    text += cat(column, value, "\n");
  }
  return text;
}

std::string describe_dataset(const std::string& path, const TokenFileOptions& options) {
  return dataset_text(dataset_facts(path, options));
}

}  // namespace ftrun

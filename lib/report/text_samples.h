#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ftrun {

/// TextSample is a text that a model generated as the continuation of the beginning of a document.
struct TextSample {
  int64_t prompt_tokens = 0;
  std::string prompt;
  std::string answer;
};

/// Returns one line of samples.jsonl, without a line end: {"step": 20, "prompt": "...", "answer":
/// "..."}. Bytes that are not UTF-8 are replaced.
std::string text_sample_line(int64_t step, const TextSample& sample);

struct RecordedTextSample {
  int64_t step = 0;
  std::string prompt;
  std::string answer;
};

/// Reads every readable line of a samples.jsonl and counts the others. Error(kBadInput) when the
/// file cannot be read.
std::vector<RecordedTextSample> read_text_samples(const std::string& path,
                                                  int64_t* unreadable = nullptr);

}  // namespace ftrun

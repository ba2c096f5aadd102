#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace ftrun {

/// Detokenizer turns token ids into text with a Hugging Face tokenizer.json, for samples of
/// generated text. It knows the two BPE alphabets in use: byte-level (GPT-2, Llama 3, Qwen,
/// SmolLM2) and SentencePiece with byte fallback (Llama 2, Mistral).
class Detokenizer {
 public:
  /// Reads the text of a tokenizer.json; `where` is the file's path for messages. Throws
  /// Error(kBadInput) for text that is not a tokenizer, and Error(kUnsupported) for a model that is
  /// not BPE.
  static Detokenizer parse(std::string_view text, const std::string& where);

  /// Returns the text of `ids`, always valid UTF-8 (bytes that are not become U+FFFD). Unknown ids
  /// and, with `skip_special`, special tokens are left out.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  size_t size() const { return bytes_.size(); }

 private:
  std::unordered_map<int32_t, std::string> bytes_;
  std::unordered_set<int32_t> special_;
  bool strip_first_space_ = false;
};

/// Returns `bytes` with everything that is not UTF-8 replaced by U+FFFD, one for each character
/// begun.
std::string replace_not_utf8(std::string_view bytes);

}  // namespace ftrun

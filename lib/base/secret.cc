#include "base/secret.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

namespace ftrun {
namespace {

constexpr std::array<std::string_view, 8> kSecretWords{
    "password", "passwd", "passphrase", "secret", "credential", "credentials", "token", "auth"};

/// Splits a name into lower-case words: "wandbApi_KEY" is wandb, api, key.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  bool after_lower = false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool upper = std::isupper(byte) != 0;
    if (std::isalnum(byte) == 0 || (upper && after_lower)) words.emplace_back();
    if (std::isalnum(byte) != 0) words.back() += static_cast<char>(std::tolower(byte));
    after_lower = std::islower(byte) != 0;
  }
  std::erase(words, "");
  return words;
}

}  // namespace

bool is_secret_name(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  // The last words of names that are not secrets, because they are about tokens of a text:
  // "token_dtype", "pad_token_id", "trainable_token_indices".
  constexpr std::array<std::string_view, 4> kOfVocabulary{"dtype", "id", "ids", "indices"};
  const bool of_vocabulary = !words.empty() && std::find(kOfVocabulary.begin(), kOfVocabulary.end(),
                                                         words.back()) != kOfVocabulary.end();
  for (const std::string& word : words)
    if (std::find(kSecretWords.begin(), kSecretWords.end(), word) != kSecretWords.end() &&
        !(word == "token" && of_vocabulary))
      return true;
  return (words.size() > 1 && words.back() == "key") ||
         (!words.empty() && words.back().size() > 3 && words.back().ends_with("apikey"));
}

}  // namespace ftrun

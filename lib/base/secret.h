#pragma once

#include <string_view>

namespace ftrun {

/// Returns whether a name is likely to name a secret: one of its words (split at '_', '-' and
/// capitals) is password, passwd, passphrase, secret, credential(s), token or auth, or it ends in
/// "key" after another word ("api_key"). The word "token" counts only in the singular: total_tokens
/// and tokenizer are no secrets. It does not count before a last word dtype, id(s) or indices
/// (token_dtype, pad_token_id).
bool is_secret_name(std::string_view name);

/// The text that replaces a secret's value wherever a config is shown.
inline constexpr std::string_view kHiddenSecret = "(hidden)";

}  // namespace ftrun

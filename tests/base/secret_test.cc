#include "base/secret.h"

#include <catch2/catch.hpp>

namespace ftrun {
namespace {

TEST_CASE("names of secrets are distinguished from names of tokens") {
  for (const char* name : {"api_key",        "apiKey",
                           "WANDB_API_KEY",  "experiment_key",
                           "password",       "db-password",
                           "HF_TOKEN",       "hfToken",
                           "access_token",   "client_secret",
                           "credentials",    "auth",
                           "http_auth",      "aws_secret_access_key",
                           "secret_id",      "token_secret_id",
                           "AWS_ACCESS_KEY", "apikey",
                           "passwd",         "passphrase",
                           "myapikey"})
    CHECK(is_secret_name(name));
  for (const char* name :
       {"tokenizer", "total_tokens", "tokens_per_second", "key", "keys", "seed", "author", "monkey",
        "keyboard", "", "secretary", "token_dtype", "pad_token_id", "trainable_token_indices"})
    CHECK_FALSE(is_secret_name(name));
}

}  // namespace
}  // namespace ftrun

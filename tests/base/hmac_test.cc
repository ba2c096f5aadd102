#include "base/hmac.h"

#include <set>

#include <catch2/catch.hpp>

using namespace ftrun;

namespace {
std::string hex(const Digest& digest) {
  return hex_text({reinterpret_cast<const char*>(digest.data()), digest.size()});
}
}  // namespace

TEST_CASE(
    "SHA-256 gives the digests of the standard, and of texts as long as a block or nearly so") {
  REQUIRE(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  REQUIRE(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  REQUIRE(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  // Another implementation computed these values.
  REQUIRE(hex(sha256(std::string(55, 'a'))) ==
          "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  REQUIRE(hex(sha256(std::string(56, 'a'))) ==
          "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  REQUIRE(hex(sha256(std::string(64, 'a'))) ==
          "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST_CASE("HMAC-SHA256 gives the codes of RFC 4231, with short and with long keys") {
  REQUIRE(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  REQUIRE(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  REQUIRE(hex(hmac_sha256(std::string(131, '\xaa'),
                          "Test Using Larger Than Block-Size Key - Hash Key First")) ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("digests are equal when all bytes are, and random bytes do not repeat") {
  const Digest a = sha256("a");
  Digest b = a;
  REQUIRE(equal_in_constant_time(a, b));
  for (size_t i = 0; i < b.size(); ++i) {
    b = a;
    b[i] ^= 1;
    REQUIRE_FALSE(equal_in_constant_time(a, b));
  }
  REQUIRE_FALSE(equal_in_constant_time(a, std::span(a).first(31)));
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random_bytes(16));
  REQUIRE(seen.size() == 100);
  REQUIRE(seen.begin()->size() == 16);
}

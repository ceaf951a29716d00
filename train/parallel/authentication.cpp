#include <gradtile/train/parallel/internal/authentication.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>  // declares getentropy() on macOS
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/text/hexadecimal.h>

namespace gradtile {

Digest random_digest() {
    Digest digest{};
    const int result = ::getentropy(digest.data(), digest.size());
    check(result == 0, "getentropy failed: ", std::strerror(errno));
    return digest;
}

std::string random_key() {
    const Digest secret = random_digest();
    return hexadecimal(std::as_bytes(std::span(secret)));
}

Digest authentication_code(std::string_view key, std::string_view text) {
    Digest code{};
    unsigned int bytes = 0;
    const unsigned char* const result =
        ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
               reinterpret_cast<const unsigned char*>(text.data()), text.size(), code.data(), &bytes);
    check(result != nullptr && bytes == code.size(), "libcrypto: HMAC-SHA-256 failed");
    return code;
}

bool is_same(const Digest& a, const Digest& b) {
    return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace gradtile

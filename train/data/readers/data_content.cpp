#include <gradtile/train/data/readers/data_content.h>

#include <algorithm>
#include <array>
#include <vector>

#include <openssl/evp.h>

#include <gradtile/core/check.h>
#include <gradtile/core/text/hexadecimal.h>

namespace gradtile {
namespace {

constexpr std::int64_t mebibyte = 1 << 20;
constexpr std::int64_t max_whole_bytes = 4 * mebibyte;
constexpr std::int64_t sampled_blocks = 256, sampled_block_bytes = 4096;

void require_sha256(bool ok) {
    check(ok, "libcrypto: SHA-256 failed");
}

}  // namespace

ContentHash::ContentHash() : context_(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free) {
    require_sha256(context_ != nullptr && ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr) == 1);
}

void ContentHash::add(std::span<const std::byte> bytes) {
    require_sha256(::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
    bytes_ += std::ssize(bytes);
}

std::string ContentHash::digits() {
    std::array<unsigned char, 32> digest{};
    require_sha256(::EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return hexadecimal(std::as_bytes(std::span(digest)));
}

JsonValue DataContent::to_json() const {
    return JsonValue::object({{"bytes", bytes}, {"hash", hash}});
}

void visit_samples(const DataFile& file, const std::function<void(std::span<const std::byte>)>& visit) {
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(file.size(), mebibyte)));
    const auto visit_part = [&](std::int64_t begin, std::int64_t length) {
        const std::span<std::byte> part = std::span(buffer).first(static_cast<std::size_t>(length));
        file.read(begin, part);
        visit(part);
    };
    if (file.size() <= max_whole_bytes) {
        for (std::int64_t begin = 0; begin < file.size(); begin += mebibyte)
            visit_part(begin, std::min(mebibyte, file.size() - begin));
        return;
    }
    visit_part(0, mebibyte);
    const std::int64_t distance = (file.size() - 2 * mebibyte) / sampled_blocks;
    for (std::int64_t i = 0; i < sampled_blocks; ++i) {
        const std::int64_t begin = mebibyte + i * distance;
        visit_part(begin - begin % sampled_block_bytes, sampled_block_bytes);
    }
    visit_part(file.size() - mebibyte, mebibyte);
}

DataContent content_of(const DataFile& file) {
    ContentHash hash;
    visit_samples(file, [&](std::span<const std::byte> bytes) { hash.add(bytes); });
    return {file.size(), (file.size() <= max_whole_bytes ? "sha256:" : "sha256-sampled:") + hash.digits()};
}

DataContent full_content_of(const DataFile& file) {
    ContentHash hash;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(file.size(), mebibyte)));
    for (std::int64_t begin = 0; begin < file.size(); begin += std::ssize(buffer)) {
        buffer.resize(static_cast<std::size_t>(std::min(mebibyte, file.size() - begin)));
        file.read(begin, buffer);
        hash.add(buffer);
    }
    return hash.content();
}

std::string sha256(std::string_view text) {
    ContentHash hash;
    hash.add(std::as_bytes(std::span(text)));
    return hash.digits();
}

DataContent content_of(std::string_view text) {
    return {std::ssize(text), "sha256:" + sha256(text)};
}

void require_unchanged(const DataFile& file, const DataContent& content) {
    if (!file.was_modified()) return;
    file.require_same_size();
    const DataContent now = content_of(file);
    check(now == content, file.path(), ": holds ", now.hash, "; expected ", content.hash,
          " (it was changed while it was read)");
}

}  // namespace gradtile

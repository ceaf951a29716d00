#pragma once
/// A fingerprint of a data file, with which a resumed run, and a run's ranks, check that they read the same
/// data.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/core/io/data_file.h>
#include <gradtile/core/text/json_value.h>

struct evp_md_ctx_st;  // libcrypto's EVP_MD_CTX

namespace gradtile {

/// A file's length and hash. The hash is "sha256:..." over every byte, as sha256sum prints it, or
/// "sha256-sampled:..." over the parts that visit_samples() visits. The samples detect accidental changes; an
/// attacker can change the parts of a large file that are not sampled.
struct DataContent {
    std::int64_t bytes = 0;
    std::string hash;

    bool operator==(const DataContent&) const = default;
    /// {"bytes": 1115394, "hash": "sha256:..."}
    JsonValue to_json() const;
};

/// Hashes a file's bytes in order.
class ContentHash {
  public:
    ContentHash();
    void add(std::span<const std::byte> bytes);
    /// Returns the SHA-256 of the bytes as 64 hexadecimal digits. Call once, after the last add().
    std::string digits();
    /// Returns the content of a file that consists of the bytes. Call once, after the last add().
    DataContent content() { return {bytes_, "sha256:" + digits()}; }

  private:
    std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
    std::int64_t bytes_ = 0;
};

/// Calls visit for the parts that a file's hash covers: the whole file up to 4 MiB; in a longer file the
/// first and the last MiB, and 256 blocks of 4 KiB at equal distances in between, each beginning at a
/// multiple of 4 KiB. Reads at most 4 MiB, so large files and sparse files take no longer.
void visit_samples(const DataFile& file, const std::function<void(std::span<const std::byte>)>& visit);

/// Returns a file's content, hashed by those samples.
DataContent content_of(const DataFile& file);
/// Returns a file's content, hashed by every byte.
DataContent full_content_of(const DataFile& file);
/// Returns an in-memory text's content, hashed by every byte.
DataContent content_of(std::string_view text);

/// Returns a text's SHA-256 as 64 hexadecimal digits.
std::string sha256(std::string_view text);

/// Throws Error when the open file no longer holds `content`. A different length fails at once; if only the
/// modification time differs, the samples are compared. Makes one system call when the file was not changed.
void require_unchanged(const DataFile& file, const DataContent& content);

}  // namespace gradtile

#pragma once
/// Decompression of streams and of blocks. The libraries are loaded at their first use; a build without a
/// library's header refuses its data by name.
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace gradtile {

/// Decompresses frames (gzip calls them members) that follow each other.
class Decompressor {
  public:
    virtual ~Decompressor() = default;
    struct Progress {
        std::size_t read = 0, written = 0;
        bool is_frame_end = false;  ///< all output of a frame was written; the next byte begins another one
    };
    /// Decompresses as much as `in` and `out` allow. Throws Error that begins with the source's name when
    /// the data are damaged.
    virtual Progress run(std::span<const std::byte> in, std::span<std::byte> out) = 0;
};

/// zlib; the gzip format. Skips zeros after a member.
std::unique_ptr<Decompressor> gzip_decompressor(const std::string& source);
/// libzstd. Frames with a window of more than 128 MiB are refused.
std::unique_ptr<Decompressor> zstd_decompressor(const std::string& source);

constexpr std::string_view gzip_magic = "\x1F\x8B";
constexpr std::string_view zstd_magic = "\x28\xB5\x2F\xFD";

/// Decompresses a block whose decompressed size is known: out.size(). Throws Error that begins with `source`
/// when the block has another size.
void decompress_block(Decompressor& decompressor, std::span<const std::byte> in, std::span<std::byte> out,
                      std::string_view source);
/// The same for a block in Snappy's raw format (google/snappy, format_description.txt), which needs no
/// library.
void decompress_snappy(std::span<const std::byte> in, std::span<std::byte> out, std::string_view source);

}  // namespace gradtile

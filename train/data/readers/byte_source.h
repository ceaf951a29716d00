#pragma once
/// Bytes that are read in order: from memory, a file or standard input, decompressed if they are compressed.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/train/data/readers/data_content.h>

namespace gradtile {

class ByteSource {
  public:
    virtual ~ByteSource() = default;
    /// Reads at least one byte into `out`, which is not empty; returns how many, and 0 only at the end.
    virtual std::size_t read(std::span<std::byte> out) = 0;
    /// How many bytes of the file have been read so far, before decompression.
    virtual std::int64_t file_bytes() const = 0;
    /// How many bytes read() will return in all, if that is known; otherwise 0.
    virtual std::int64_t expected_bytes() const { return 0; }
    /// The content of the file, before decompression, if open_text() was asked for its hash and all of it has
    /// been read.
    virtual std::optional<DataContent> content() const { return {}; }
};

/// Reads text in lines, or all of it. Holds one line in memory.
class TextReader {
  public:
    TextReader(std::unique_ptr<ByteSource> bytes, std::string name)
        : bytes_(std::move(bytes)), name_(std::move(name)) {}
    /// Reads a text in memory, which must outlive the reader.
    TextReader(std::string_view text, std::string name);

    const std::string& name() const { return name_; }
    std::int64_t file_bytes() const { return bytes_->file_bytes(); }
    std::optional<DataContent> content() const { return bytes_->content(); }
    /// Returns the next bytes without consuming them: `count`, or fewer if the text ends. Valid until the
    /// next call.
    std::string_view peek(std::size_t count);
    /// Sets `line` to the next line, without its line break; it is valid until the next call. Returns false
    /// at the end. Throws Error when a line is longer than `max_bytes`.
    bool next_line(std::string_view& line, std::size_t max_bytes);
    /// Returns all remaining text. Throws Error when `bytes_each` times its length is more than the available
    /// memory.
    std::string read_all(std::size_t bytes_each);

  private:
    bool fill();  // appends to buffer_; false at the end

    std::unique_ptr<ByteSource> bytes_;
    std::string name_;
    std::string buffer_;
    std::size_t begin_ = 0;  // the first byte in buffer_ that was not consumed
    std::int64_t lines_ = 0;
};

/// The name for standard input.
inline constexpr std::string_view standard_input_name = "-";

/// Opens a file, or standard input for "-". Contents that begin as gzip or zstd data are decompressed,
/// whatever the file's name is. Throws Error naming the file, also when the library for the compression is
/// missing. With FileHash::computed, content() returns the file's hash at its end, without reading it again.
enum class FileHash { none, computed };
TextReader open_text(const std::string& path, FileHash hash = FileHash::none);

}  // namespace gradtile

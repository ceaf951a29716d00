#include <gradtile/train/data/readers/byte_source.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 16;

class MemoryBytes final : public ByteSource {
  public:
    explicit MemoryBytes(std::string_view text) : rest_(text) {}
    std::size_t read(std::span<std::byte> out) override {
        const std::size_t count = std::min(out.size(), rest_.size());
        std::ranges::copy(std::as_bytes(std::span(rest_)).first(count), out.begin());
        rest_.remove_prefix(count);
        done_ += static_cast<std::int64_t>(count);
        return count;
    }
    std::int64_t file_bytes() const override { return done_; }
    std::int64_t expected_bytes() const override { return done_ + std::ssize(rest_); }

  private:
    std::string_view rest_;
    std::int64_t done_ = 0;
};

class FileBytes final : public ByteSource {
  public:
    FileBytes(const std::string& path, FileHash hash) : file_(path) {
        if (hash == FileHash::computed) hash_.emplace();
    }
    std::size_t read(std::span<std::byte> out) override {
        const auto count = std::min<std::int64_t>(std::ssize(out), file_.size() - position_);
        if (count == 0) require_one_content();
        const std::span<std::byte> part = out.first(static_cast<std::size_t>(count));
        file_.read(position_, part);
        position_ += count;
        if (hash_) hash_->add(part);
        if (hash_ && position_ == file_.size()) {
            content_ = hash_->content();
            hash_.reset();
        }
        return static_cast<std::size_t>(count);
    }
    std::int64_t file_bytes() const override { return position_; }
    std::int64_t expected_bytes() const override { return file_.size(); }
    std::optional<DataContent> content() const override { return content_; }

  private:
    /// A hashed file that was only touched may go on: it is read again to tell.
    void require_one_content() const {
        if (!file_.was_modified()) return;
        file_.require_same_size();
        check(content_ && full_content_of(file_) == *content_, file_.path(),
              ": was changed while it was read");
    }

    DataFile file_;
    std::int64_t position_ = 0;
    std::optional<ContentHash> hash_;
    std::optional<DataContent> content_;
};

class StandardInput final : public ByteSource {
  public:
    std::size_t read(std::span<std::byte> out) override {
        while (true) {
            const ssize_t got = ::read(STDIN_FILENO, out.data(), out.size());
            if (got >= 0) {
                done_ += got;
                return static_cast<std::size_t>(got);
            }
            check(errno == EINTR || errno == EAGAIN,
                  "standard input: cannot be read: ", std::strerror(errno));
            // The program that started this one made the pipe non-blocking.
            pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
            if (errno == EAGAIN) ::poll(&input, 1, /*timeout=*/-1);
        }
    }
    std::int64_t file_bytes() const override { return done_; }

  private:
    std::int64_t done_ = 0;
};

class DecompressedBytes final : public ByteSource {
  public:
    /// `first` holds the bytes that have been read from `bytes`.
    DecompressedBytes(std::unique_ptr<ByteSource> bytes, std::vector<std::byte> first,
                      std::unique_ptr<Decompressor> decompressor, std::string name)
        : bytes_(std::move(bytes)),
          buffer_(std::move(first)),
          rest_(buffer_),
          decompressor_(std::move(decompressor)),
          name_(std::move(name)) {}

    std::size_t read(std::span<std::byte> out) override {
        while (true) {
            if (rest_.empty() && !is_end_) fill();
            if (rest_.empty() && is_frame_end_) return 0;
            const Decompressor::Progress progress = decompressor_->run(rest_, out);
            rest_ = rest_.subspan(progress.read);
            is_frame_end_ = progress.is_frame_end;
            if (progress.written > 0) return progress.written;
            check(progress.read > 0 || is_frame_end_, name_,
                  ": its compressed data end too early (the file is truncated)");
        }
    }
    std::int64_t file_bytes() const override { return bytes_->file_bytes(); }
    std::optional<DataContent> content() const override { return bytes_->content(); }

  private:
    void fill() {
        buffer_.resize(chunk_bytes);
        const std::size_t got = bytes_->read(buffer_);
        is_end_ = got == 0;
        rest_ = std::span(buffer_).first(got);
    }

    std::unique_ptr<ByteSource> bytes_;
    std::vector<std::byte> buffer_;
    std::span<const std::byte> rest_;  // the bytes in buffer_ that are not decompressed yet
    std::unique_ptr<Decompressor> decompressor_;
    std::string name_;
    bool is_end_ = false, is_frame_end_ = false;
};

/// Bytes that were read ahead, and the bytes after them.
class BytesAfter final : public ByteSource {
  public:
    BytesAfter(std::vector<std::byte> first, std::unique_ptr<ByteSource> bytes)
        : first_(std::move(first)), bytes_(std::move(bytes)) {}
    std::size_t read(std::span<std::byte> out) override {
        if (done_ == first_.size()) return bytes_->read(out);
        const std::size_t count = std::min(out.size(), first_.size() - done_);
        std::copy_n(first_.begin() + static_cast<std::ptrdiff_t>(done_), count, out.begin());
        done_ += count;
        return count;
    }
    std::int64_t file_bytes() const override { return bytes_->file_bytes(); }
    std::int64_t expected_bytes() const override { return bytes_->expected_bytes(); }
    std::optional<DataContent> content() const override { return bytes_->content(); }

  private:
    std::vector<std::byte> first_;
    std::size_t done_ = 0;
    std::unique_ptr<ByteSource> bytes_;
};

constexpr std::size_t longest_magic = 10;  // bzip2's

/// Throws Error for data of other compressors, which would be read as text otherwise.
void refuse_other_compression(std::string_view begin, const std::string& name) {
    using namespace std::string_view_literals;
    struct Format {
        std::string_view magic, what;
    };
    constexpr std::array formats{
        Format{"\xFD\x37zXZ\0"sv, "xz data"},
        Format{"PK\x03\x04"sv, "a zip archive"},
        Format{"7z\xBC\xAF\x27\x1C"sv, "a 7z archive"},
        Format{"\x04\x22\x4D\x18"sv, "lz4 data"},
    };
    // "BZh", a level, and the first digits of pi.
    const bool is_bzip2 = begin.starts_with("BZh") && begin.substr(std::min(begin.size(), std::size_t{4})) ==
                                                          "\x31\x41\x59\x26\x53\x59"sv;
    check(!is_bzip2, name, ": is bzip2 data; expected text, or text compressed with gzip or zstd");
    for (const auto& [magic, what] : formats)
        check(!begin.starts_with(magic), name, ": is ", what,
              "; expected text, or text compressed with gzip or zstd");
}

/// A zstd frame, or one that is skipped, with which pzstd begins (RFC 8878, 3.1.2).
bool begins_as_zstd(std::string_view begin) {
    const bool is_skipped = begin.size() >= 4 && (static_cast<unsigned char>(begin[0]) & 0xF0) == 0x50 &&
                            begin.substr(1, 3) == "\x2A\x4D\x18";
    return is_skipped || begin.starts_with(zstd_magic);
}

std::unique_ptr<ByteSource> decompressed_if_compressed(std::unique_ptr<ByteSource> bytes,
                                                       const std::string& name) {
    std::vector<std::byte> first(longest_magic);
    std::size_t count = 0;
    while (count < first.size()) {
        const std::size_t got = bytes->read(std::span(first).subspan(count));
        if (got == 0) break;
        count += got;
    }
    first.resize(count);
    const std::string_view begin(reinterpret_cast<const char*>(first.data()), count);
    refuse_other_compression(begin, name);
    std::unique_ptr<Decompressor> decompressor;
    if (begin.starts_with(gzip_magic)) decompressor = gzip_decompressor(name);
    if (begins_as_zstd(begin)) decompressor = zstd_decompressor(name);
    if (!decompressor) return std::make_unique<BytesAfter>(std::move(first), std::move(bytes));
    return std::make_unique<DecompressedBytes>(std::move(bytes), std::move(first), std::move(decompressor),
                                               name);
}

}  // namespace

TextReader::TextReader(std::string_view text, std::string name)
    : TextReader(std::make_unique<MemoryBytes>(text), std::move(name)) {}

bool TextReader::fill() {
    // Without this the buffer of a small file would double until it is up to twice as long as the file.
    constexpr std::int64_t small_file = 1 << 22;
    if (buffer_.empty())
        buffer_.reserve(static_cast<std::size_t>(std::min(bytes_->expected_bytes(), small_file)) +
                        chunk_bytes);
    buffer_.erase(0, begin_);
    begin_ = 0;
    const std::size_t before = buffer_.size();
    buffer_.resize(before + chunk_bytes);
    const std::size_t got = bytes_->read(std::as_writable_bytes(std::span(buffer_)).subspan(before));
    buffer_.resize(before + got);
    return got > 0;
}

std::string_view TextReader::peek(std::size_t count) {
    while (buffer_.size() - begin_ < count && fill()) {
    }
    return std::string_view(buffer_).substr(begin_, count);
}

bool TextReader::next_line(std::string_view& line, std::size_t max_bytes) {
    std::size_t searched = 0, end = 0;
    while ((end = buffer_.find('\n', begin_ + searched)) == std::string::npos) {
        searched = buffer_.size() - begin_;
        check(searched <= max_bytes, name_, ": line ", lines_ + 1, ": more than ", max_bytes, " bytes");
        if (fill()) continue;
        if (begin_ == buffer_.size()) return false;
        end = buffer_.size();
        break;
    }
    check(end - begin_ <= max_bytes, name_, ": line ", lines_ + 1, ": more than ", max_bytes, " bytes");
    line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, buffer_.size());
    ++lines_;
    return true;
}

std::string TextReader::read_all(std::size_t bytes_each) {
    const std::size_t available = available_memory(Device::cpu());
    const auto require_memory = [&](std::size_t bytes) {
        check(bytes <= available / bytes_each, name_, ": ", bytes, " bytes of text need ", bytes_each,
              " times that in memory; ", available, " bytes are available (token files stay on disk)");
    };
    const auto expected = static_cast<std::size_t>(bytes_->expected_bytes());
    require_memory(expected);
    // Avoids copies while the buffer grows. fill() asks for a chunk at the end of the file, too.
    buffer_.reserve(expected + chunk_bytes);
    do require_memory(buffer_.size() - begin_);
    while (fill());
    return std::exchange(buffer_, {});
}

TextReader open_text(const std::string& path, FileHash hash) {
    std::string name = path == standard_input_name ? "standard input" : path;
    std::unique_ptr<ByteSource> bytes;
    if (path == standard_input_name) {
        bytes = std::make_unique<StandardInput>();
    } else {
        bytes = std::make_unique<FileBytes>(path, hash);
    }
    bytes = decompressed_if_compressed(std::move(bytes), name);
    return {std::move(bytes), std::move(name)};
}

}  // namespace gradtile

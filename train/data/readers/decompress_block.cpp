#include <cstdint>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {

void decompress_block(Decompressor& decompressor, std::span<const std::byte> in, std::span<std::byte> out,
                      std::string_view source) {
    std::byte beyond{};  // receives a byte that does not belong to the block
    std::size_t written = 0;
    bool is_complete = in.empty();
    while (!in.empty()) {
        const std::span<std::byte> to =
            written < out.size() ? out.subspan(written) : std::span<std::byte>(&beyond, 1);
        const Decompressor::Progress progress = decompressor.run(in, to);
        in = in.subspan(progress.read);
        written += progress.written;
        is_complete = progress.is_frame_end;
        check(written <= out.size() && (progress.read > 0 || progress.written > 0), source,
              ": damaged: a compressed block does not have its ", out.size(), " bytes");
    }
    check(is_complete && written == out.size(), source, ": damaged: a compressed block has ", written,
          " bytes; expected ", out.size());
}

namespace {

/// Reads the elements of a Snappy block; each read is checked.
class SnappyInput {
  public:
    SnappyInput(std::span<const std::byte> bytes, std::string_view source) : rest_(bytes), source_(source) {}
    bool is_empty() const { return rest_.empty(); }
    std::span<const std::byte> take(std::size_t count) {
        check(count <= rest_.size(), source_, ": damaged: a Snappy block ends too early");
        const std::span<const std::byte> taken = rest_.first(count);
        rest_ = rest_.subspan(count);
        return taken;
    }
    /// Reads a little-endian integer of 1 to 4 bytes.
    std::size_t integer(std::size_t bytes) {
        std::size_t value = 0;
        const std::span<const std::byte> taken = take(bytes);
        for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::size_t>(taken[i]) << (8 * i);
        return value;
    }
    std::uint64_t varint() {
        return read_varint([&] { return integer(1); }, source_);
    }

  private:
    std::span<const std::byte> rest_;
    std::string_view source_;
};

}  // namespace

void decompress_snappy(std::span<const std::byte> in, std::span<std::byte> out, std::string_view source) {
    SnappyInput input(in, source);
    const std::uint64_t length = input.varint();
    check(length == out.size(), source, ": damaged: a Snappy block has ", length, " bytes; expected ",
          out.size());
    std::size_t written = 0;
    const auto require_room = [&](std::size_t count) {
        check(count <= out.size() - written, source, ": damaged: a Snappy block has more than ", out.size(),
              " bytes");
    };
    while (!input.is_empty()) {
        const std::size_t tag = input.integer(1), kind = tag & 3, high = tag >> 2;
        if (kind == 0) {  // a literal; lengths above 60 follow in 1 to 4 bytes
            const std::size_t count = 1 + (high < 60 ? high : input.integer(high - 59));
            const std::span<const std::byte> literal = input.take(count);
            require_room(count);
            std::memcpy(out.data() + written, literal.data(), count);
            written += count;
            continue;
        }
        const std::size_t count = kind == 1 ? 4 + (high & 7) : 1 + high;
        const std::size_t distance =
            kind == 1 ? (high >> 3 << 8) + input.integer(1) : input.integer(kind == 2 ? 2 : 4);
        check(distance >= 1 && distance <= written, source, ": damaged: a Snappy block copies bytes ",
              distance, " before byte ", written);
        require_room(count);
        // Byte by byte, because a copy may overlap its own result.
        for (std::size_t i = 0; i < count; ++i, ++written) out[written] = out[written - distance];
    }
    check(written == out.size(), source, ": damaged: a Snappy block has ", written, " bytes; expected ",
          out.size());
}

}  // namespace gradtile

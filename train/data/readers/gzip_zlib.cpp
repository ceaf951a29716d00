#include <zlib.h>

#include <algorithm>
#include <limits>

#include <gradtile/core/check.h>
#include <gradtile/core/shared_library.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {
namespace {

/// The zlib functions. The library is loaded, not linked: only compressed data need it.
struct ZlibLibrary {
    decltype(&::inflateInit2_) inflate_init = nullptr;
    decltype(&::inflate) inflate = nullptr;
    decltype(&::inflateReset) inflate_reset = nullptr;
    decltype(&::inflateEnd) inflate_end = nullptr;

    ZlibLibrary() {
        const SharedLibrary library("gzip data", {"libz.so.1", "libz.so"}, "apt-get install zlib1g");
        library.find("inflateInit2_", inflate_init);
        library.find("inflate", inflate);
        library.find("inflateReset", inflate_reset);
        library.find("inflateEnd", inflate_end);
    }
};

const ZlibLibrary& zlib() {
    static const ZlibLibrary library;
    return library;
}

class GzipDecompressor final : public Decompressor {
  public:
    explicit GzipDecompressor(std::string source) : source_(std::move(source)) {
        constexpr int gzip_only = 16, window_bits = 15;
        const int result = zlib().inflate_init(&stream_, window_bits + gzip_only, ZLIB_VERSION,
                                               static_cast<int>(sizeof stream_));
        check(result == Z_OK, source_, ": zlib cannot start: error ", result);
    }
    ~GzipDecompressor() override { zlib().inflate_end(&stream_); }
    GzipDecompressor(const GzipDecompressor&) = delete;
    GzipDecompressor& operator=(const GzipDecompressor&) = delete;

    Progress run(std::span<const std::byte> in, std::span<std::byte> out) override {
        if (is_frame_end_) {
            // Tape and tar writers fill a block with zeros, which gzip ignores, too.
            const auto end_of_zeros = std::ranges::find_if(in, [](std::byte b) { return b != std::byte{0}; });
            if (end_of_zeros != in.begin())
                return {.read = static_cast<std::size_t>(end_of_zeros - in.begin()), .is_frame_end = true};
            zlib().inflate_reset(&stream_);
        }
        constexpr std::size_t most = std::numeric_limits<uInt>::max();
        stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
        stream_.avail_in = static_cast<uInt>(std::min(in.size(), most));
        stream_.next_out = reinterpret_cast<Bytef*>(out.data());
        stream_.avail_out = static_cast<uInt>(std::min(out.size(), most));
        const uInt all_in = stream_.avail_in, all_out = stream_.avail_out;
        const int result = zlib().inflate(&stream_, Z_NO_FLUSH);
        check(result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR, source_,
              ": damaged gzip data: ", stream_.msg != nullptr ? stream_.msg : "zlib cannot read them");
        is_frame_end_ = result == Z_STREAM_END;
        return {all_in - stream_.avail_in, all_out - stream_.avail_out, is_frame_end_};
    }

  private:
    std::string source_;
    z_stream stream_{};
    bool is_frame_end_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> gzip_decompressor(const std::string& source) {
    return std::make_unique<GzipDecompressor>(source);
}

}  // namespace gradtile

#include <zstd.h>

#include <gradtile/core/check.h>
#include <gradtile/core/shared_library.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {
namespace {

/// The libzstd functions. The library is loaded, not linked: only compressed data need it.
struct ZstdLibrary {
    decltype(&::ZSTD_createDStream) create = nullptr;
    decltype(&::ZSTD_freeDStream) free = nullptr;
    decltype(&::ZSTD_decompressStream) decompress = nullptr;
    decltype(&::ZSTD_isError) is_error = nullptr;
    decltype(&::ZSTD_getErrorName) error_name = nullptr;

    ZstdLibrary() {
        const SharedLibrary library("zstd data", {"libzstd.so.1", "libzstd.so"}, "apt-get install libzstd1");
        library.find("ZSTD_createDStream", create);
        library.find("ZSTD_freeDStream", free);
        library.find("ZSTD_decompressStream", decompress);
        library.find("ZSTD_isError", is_error);
        library.find("ZSTD_getErrorName", error_name);
    }
};

const ZstdLibrary& zstd() {
    static const ZstdLibrary library;
    return library;
}

class ZstdDecompressor final : public Decompressor {
  public:
    explicit ZstdDecompressor(std::string source)
        : source_(std::move(source)), stream_(zstd().create(), zstd().free) {
        check(stream_ != nullptr, source_, ": libzstd cannot start");
    }

    Progress run(std::span<const std::byte> in, std::span<std::byte> out) override {
        ZSTD_inBuffer from{in.data(), in.size(), 0};
        ZSTD_outBuffer to{out.data(), out.size(), 0};
        const std::size_t result = zstd().decompress(stream_.get(), &to, &from);
        check(zstd().is_error(result) == 0, source_, ": damaged zstd data: ", zstd().error_name(result));
        return {from.pos, to.pos, result == 0};
    }

  private:
    std::string source_;
    std::unique_ptr<ZSTD_DStream, decltype(&::ZSTD_freeDStream)> stream_;
};

}  // namespace

std::unique_ptr<Decompressor> zstd_decompressor(const std::string& source) {
    return std::make_unique<ZstdDecompressor>(source);
}

}  // namespace gradtile

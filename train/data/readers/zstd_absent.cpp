// zstd data in a build without libzstd.
#include <gradtile/core/check.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {

std::unique_ptr<Decompressor> zstd_decompressor(const std::string& source) {
    throw Error(concat(source,
                       ": zstd data need libzstd, which was not there when gradtile was built "
                       "(apt-get install libzstd-dev, then build again)"));
}

}  // namespace gradtile

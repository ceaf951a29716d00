// gzip data in a build without zlib.
#include <gradtile/core/check.h>
#include <gradtile/train/data/readers/decompressor.h>

namespace gradtile {

std::unique_ptr<Decompressor> gzip_decompressor(const std::string& source) {
    throw Error(concat(source,
                       ": gzip data need zlib, which was not there when gradtile was built "
                       "(apt-get install zlib1g-dev, then build again)"));
}

}  // namespace gradtile

#pragma once
/// Where a block of a stream of documents begins.
#include <cstdint>

namespace gradtile {

struct StreamPlace {
    std::int64_t epoch = 0;
    std::int64_t file = 0;   ///< index in the epoch's order of the files
    std::int64_t row = 0;    ///< index in the file
    std::int64_t block = 0;  ///< number of the block since the run's start

    bool operator==(const StreamPlace&) const = default;
};

}  // namespace gradtile

#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Integer functions of the block
/// kernels. They replace those of <algorithm>, which are inline functions with external linkage (see
/// attention/cpu/kernels.h).
#include <cstdint>

#include <gradtile/attention/mask.h>

namespace gradtile::attention::cpu {
namespace {

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
    return a < b ? a : b;
}
inline std::int64_t larger(std::int64_t a, std::int64_t b) {
    return a > b ? a : b;
}
inline std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
inline IndexRange intersection(IndexRange a, IndexRange b) {
    return {larger(a.begin, b.begin), smaller(a.end, b.end)};
}

}  // namespace
}  // namespace gradtile::attention::cpu

#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Integer functions for the block
/// kernels. These functions replace std::min, std::max and std::clamp, which are inline functions with
/// external linkage; attention/cpu/kernels.h says why kernels must not use such functions.
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

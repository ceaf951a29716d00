#include <gradtile/train/data/permutation.h>

#include <algorithm>
#include <bit>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

// Four rounds make a strong pseudorandom permutation on a large domain (Luby and Rackoff 1988). Small domains
// need a few more rounds, and at least 2 x 4 bits, before all orders are about equally likely.
constexpr std::uint32_t rounds = 8;
constexpr int min_half_bits = 4;

}  // namespace

Permutation::Permutation(std::uint64_t n, std::uint64_t seed) : n_(n), key_(philox_key(seed)) {
    check(n >= 1, "permutation: of no elements");
    half_bits_ = std::max(min_half_bits, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
}

std::uint64_t Permutation::operator()(std::uint64_t i) const {
    check(i < n_, "permutation: place ", i, " of ", n_);
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    do {
        std::uint64_t left = i >> half_bits_, right = i & mask;
        for (std::uint32_t round = 0; round < rounds; ++round) {
            const std::uint32_t mixed =
                Philox::draw({static_cast<std::uint32_t>(right), round, 0, 0}, key_)[0];
            left ^= mixed & mask;
            std::swap(left, right);
        }
        i = left << half_bits_ | right;
    } while (i >= n_);
    return i;
}

}  // namespace gradtile

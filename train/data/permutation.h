#pragma once
/// A seeded permutation of 0 .. n-1 that is computed and not stored.
#include <cstdint>

#include <gradtile/core/philox.h>

namespace gradtile {

/// A Feistel network over the smallest even number of bits that holds n, applied repeatedly until the value
/// is below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Philox is the round
/// function. The permutation takes constant memory and each element constant expected time, so a training run
/// resumes at any position without a stored shuffle.
class Permutation {
  public:
    Permutation(std::uint64_t n, std::uint64_t seed);
    std::uint64_t size() const { return n_; }
    /// Returns the element at position i < n.
    std::uint64_t operator()(std::uint64_t i) const;

  private:
    std::uint64_t n_;
    Philox::Key key_;
    int half_bits_;
};

}  // namespace gradtile

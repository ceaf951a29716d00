#pragma once
/// Random choices for the grammars' texts.
#include <cstdint>

#include <gradtile/core/philox.h>
#include <gradtile/core/random.h>

namespace gradtile {

/// Returns a random number in [0, n) at each call. The numbers are the same on every machine.
class GrammarDraws {
  public:
    GrammarDraws(Seed seed, std::uint64_t purpose) : key_(philox_key(mix_seed(seed.value, purpose))) {}

    std::int64_t operator()(std::int64_t n) {
        const Philox::Counter words = Philox::draw(
            {static_cast<std::uint32_t>(draws_), static_cast<std::uint32_t>(draws_ >> 32), 0, 0}, key_);
        ++draws_;
        // The high half of 32 random bits times n. The deviation from uniform is less than n / 2^32.
        return static_cast<std::int64_t>(std::uint64_t{words[0]} * static_cast<std::uint64_t>(n) >> 32);
    }

  private:
    Philox::Key key_;
    std::uint64_t draws_ = 0;
};

}  // namespace gradtile

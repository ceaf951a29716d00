#pragma once
/// A hash table that maps two adjacent tokens to their merge.
#include <cstdint>
#include <vector>

#include <gradtile/train/tokenizers/internal/scaled_hash.h>

namespace gradtile {

class PairTable {
  public:
    static constexpr std::uint32_t no_rank = 0xFFFFFFFF;

    struct Merge {
        std::uint32_t rank = no_rank;  ///< the merge with the smallest rank comes first
        std::int32_t result = -1;
    };

    explicit PairTable(std::size_t expected_pairs = 0) : slots_(2 * expected_pairs + 1) {}

    /// Sets a pair's merge. The table has room for the pair count that was given to the constructor.
    void set(std::int32_t left, std::int32_t right, Merge merge) {
        Slot& slot = slots_[index_of(key_of(left, right))];
        slot = {key_of(left, right), merge};
    }

    /// Returns a pair's merge. If the pair has no merge, the rank is no_rank.
    Merge find(std::int32_t left, std::int32_t right) const {
        return slots_[index_of(key_of(left, right))].merge;
    }

  private:
    struct Slot {
        std::uint64_t key = empty;
        Merge merge{};
    };
    // Not a pair's key, because ids are not negative.
    static constexpr std::uint64_t empty = ~std::uint64_t{0};

    static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    }
    /// Returns the index of the key's slot, or of the free slot where the key would be stored.
    std::size_t index_of(std::uint64_t key) const {
        // Fibonacci hashing: the high bits of a product with 2^64 / golden ratio.
        std::size_t slot = scaled_hash((key ^ key >> 29) * 0x9E3779B97F4A7C15u, slots_.size());
        while (slots_[slot].key != key && slots_[slot].key != empty)
            slot = slot + 1 == slots_.size() ? 0 : slot + 1;
        return slot;
    }

    std::vector<Slot> slots_;
};

}  // namespace gradtile

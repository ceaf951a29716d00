#pragma once
/// Merges adjacent tokens within one piece.
#include <cstdint>
#include <vector>

#include <gradtile/train/tokenizers/internal/pair_table.h>

namespace gradtile {

/// Replaces adjacent token pairs by their merges' results, until no pair has a merge. The pair with the
/// smallest rank comes first; if several pairs have this rank, the leftmost one. An object holds one thread's
/// scratch memory.
class BytePairMerging {
  public:
    explicit BytePairMerging(const PairTable& table) : table_(table) {}

    void run(std::vector<std::int32_t>& ids) {
        if (ids.size() <= max_scanned) {
            by_scanning(ids);
        } else {
            by_queue(ids);
        }
    }

  private:
    /// For pieces with at most this many bytes, the smallest rank is found by scanning all pairs: n^2 steps,
    /// but each step is fast.
    static constexpr std::size_t max_scanned = 64;

    void by_scanning(std::vector<std::int32_t>& ids);
    /// Merges in n log n steps, with a rank heap and a linked token list.
    void by_queue(std::vector<std::int32_t>& ids);

    struct Node {
        std::int32_t id;  // -1: the token was merged into an earlier token
        std::uint32_t previous, next;
    };
    void queue_pair(std::uint32_t left, std::uint32_t right);

    const PairTable& table_;
    std::vector<PairTable::Merge> merges_;
    std::vector<Node> nodes_;
    std::vector<std::uint64_t> queue_;  // each pair's rank and position, packed in one number
};

}  // namespace gradtile

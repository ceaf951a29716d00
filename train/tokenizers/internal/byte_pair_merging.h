#pragma once
/// The merges within one piece.
#include <cstdint>
#include <vector>

#include <gradtile/train/tokenizers/internal/pair_table.h>

namespace gradtile {

/// Replaces pairs of adjacent tokens, the smallest rank first and of equal ranks the leftmost, until no pair
/// has a merge. An object holds the scratch of one thread.
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
    /// Pieces of up to so many bytes are scanned for the smallest rank: n^2 steps, but each is fast.
    static constexpr std::size_t max_scanned = 64;

    void by_scanning(std::vector<std::int32_t>& ids);
    /// n log n steps: a heap of ranks over a linked list of tokens.
    void by_queue(std::vector<std::int32_t>& ids);

    struct Node {
        std::int32_t id;  // -1: merged into an earlier one
        std::uint32_t previous, next;
    };
    void queue_pair(std::uint32_t left, std::uint32_t right);

    const PairTable& table_;
    std::vector<PairTable::Merge> merges_;
    std::vector<Node> nodes_;
    std::vector<std::uint64_t> queue_;  // rank and position
};

}  // namespace gradtile

#include <gradtile/train/tokenizers/internal/byte_pair_merging.h>

#include <algorithm>
#include <functional>
#include <limits>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr std::uint32_t no_node = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void BytePairMerging::by_scanning(std::vector<std::int32_t>& ids) {
    std::size_t count = ids.size();
    if (count < 2) return;
    merges_.resize(count);
    for (std::size_t i = 0; i + 1 < count; ++i) merges_[i] = table_.find(ids[i], ids[i + 1]);
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < count; ++i)
            if (merges_[i].rank < merges_[best].rank) best = i;
        if (merges_[best].rank == PairTable::no_rank) break;
        ids[best] = merges_[best].result;
        --count;
        for (std::size_t i = best + 1; i < count; ++i) {
            ids[i] = ids[i + 1];
            merges_[i] = merges_[i + 1];
        }
        if (best > 0) merges_[best - 1] = table_.find(ids[best - 1], ids[best]);
        if (best + 1 < count) merges_[best] = table_.find(ids[best], ids[best + 1]);
    }
    ids.resize(count);
}

void BytePairMerging::queue_pair(std::uint32_t left, std::uint32_t right) {
    const PairTable::Merge merge = table_.find(nodes_[left].id, nodes_[right].id);
    if (merge.rank != PairTable::no_rank) queue_.push_back(std::uint64_t{merge.rank} << 32 | left);
}

void BytePairMerging::by_queue(std::vector<std::int32_t>& ids) {
    check(ids.size() < no_node, "BPE tokenizer: a piece of ", ids.size(), " bytes; expected less than ",
          no_node);
    const auto count = static_cast<std::uint32_t>(ids.size());
    nodes_.resize(count);
    queue_.clear();
    for (std::uint32_t i = 0; i < count; ++i)
        nodes_[i] = {ids[i], i == 0 ? no_node : i - 1, i + 1 == count ? no_node : i + 1};
    for (std::uint32_t i = 0; i + 1 < count; ++i) queue_pair(i, i + 1);
    std::ranges::make_heap(queue_, std::greater{});

    const auto push = [this](std::uint32_t left, std::uint32_t right) {
        if (left == no_node || right == no_node) return;
        const std::size_t before = queue_.size();
        queue_pair(left, right);
        if (queue_.size() > before) std::ranges::push_heap(queue_, std::greater{});
    };
    while (!queue_.empty()) {
        std::ranges::pop_heap(queue_, std::greater{});
        const auto rank = static_cast<std::uint32_t>(queue_.back() >> 32);
        const auto position = static_cast<std::uint32_t>(queue_.back());
        queue_.pop_back();
        Node& left = nodes_[position];
        if (left.id < 0 || left.next == no_node) continue;
        // The pair at this position may have changed since it was queued.
        const PairTable::Merge merge = table_.find(left.id, nodes_[left.next].id);
        if (merge.rank != rank) continue;
        Node& right = nodes_[left.next];
        left.id = merge.result;
        left.next = right.next;
        right.id = -1;
        if (left.next != no_node) nodes_[left.next].previous = position;
        push(left.previous, position);
        push(position, left.next);
    }
    ids.clear();
    for (std::uint32_t position = 0; position != no_node; position = nodes_[position].next)
        ids.push_back(nodes_[position].id);
    constexpr std::size_t max_kept = std::size_t{1} << 20;  // the memory for longer pieces is freed
    if (nodes_.capacity() > max_kept) {
        nodes_ = {};
        queue_ = {};
    }
}

}  // namespace gradtile

#include <gradtile/train/tokenizers/internal/token_trie.h>

#include <algorithm>

namespace gradtile {

TokenTrie::TokenTrie(std::vector<Entry> tokens) {
    constexpr std::size_t bytes = 256;
    std::ranges::sort(tokens);
    nodes_.resize(1 + bytes);
    nodes_[0].parent = 0;  // the root is taken; no byte leads to it, because bases are at least 1
    // Tokens [begin, end) have their first `depth` bytes in common, which lead to `node`.
    struct Range {
        std::size_t begin, end, depth, node;
    };
    std::vector<Range> open{{0, tokens.size(), 0, 0}};
    std::vector<unsigned char> labels;
    while (!open.empty()) {
        Range range = open.back();
        open.pop_back();
        if (range.begin < range.end && tokens[range.begin].first.size() == range.depth)
            nodes_[range.node].id = tokens[range.begin++].second;
        const auto label_of = [&](std::size_t i) {
            return static_cast<unsigned char>(tokens[i].first[range.depth]);
        };
        labels.clear();
        for (std::size_t i = range.begin; i < range.end; ++i)
            if (labels.empty() || labels.back() != label_of(i)) labels.push_back(label_of(i));
        const std::uint32_t base = free_base(labels);
        nodes_[range.node].base = base;
        for (std::size_t begin = range.begin, end = begin; begin < range.end; begin = end) {
            const unsigned char label = label_of(begin);
            while (end < range.end && label_of(end) == label) ++end;
            const std::size_t child = base + label;
            nodes_[child].parent = static_cast<std::uint32_t>(range.node);
            open.push_back({begin, end, range.depth + 1, child});
        }
    }
}

/// Returns a base at which the children with these labels have free nodes. A node without children has base
/// 1: no node there has it as its parent.
std::uint32_t TokenTrie::free_base(const std::vector<unsigned char>& labels) {
    if (labels.empty()) return 1;
    const auto is_free = [&](std::size_t node) { return nodes_[node].parent == no_parent; };
    while (first_free_ < nodes_.size() && !is_free(first_free_)) ++first_free_;
    // A region that is nearly full is not searched again.
    constexpr std::size_t searched = 1024;
    std::size_t tried = 0;
    for (std::size_t base =
             std::max<std::size_t>(first_free_, labels.front() + std::size_t{1}) - labels.front();
         ; ++base) {
        if (base + 256 > nodes_.size()) nodes_.resize(base + 512 + nodes_.size() / 4);
        if (++tried % searched == 0) first_free_ = std::max(first_free_, base);
        if (std::ranges::all_of(labels, [&](unsigned char label) { return is_free(base + label); })) {
            return static_cast<std::uint32_t>(base);
        }
    }
}

}  // namespace gradtile

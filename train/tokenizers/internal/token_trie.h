#pragma once
/// Finds all tokens that begin at a place in a text: a trie in a double array (Aoe 1989).
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradtile {

class TokenTrie {
  public:
    /// A token's bytes and its id. The bytes are not empty, and no two tokens have the same.
    using Entry = std::pair<std::string_view, std::int32_t>;

    explicit TokenTrie(std::vector<Entry> tokens);

    /// Calls visit(end, id) for each token that text has from `begin` on, shortest first.
    template <class Visit>
    void for_each(std::string_view text, std::size_t begin, Visit&& visit) const {
        std::size_t node = 0;
        for (std::size_t i = begin; i < text.size(); ++i) {
            const std::size_t child = nodes_[node].base + static_cast<unsigned char>(text[i]);
            if (nodes_[child].parent != node) return;
            node = child;
            if (nodes_[node].id >= 0) visit(i + 1, nodes_[node].id);
        }
    }

  private:
    static constexpr std::uint32_t no_parent = 0xFFFFFFFF;
    /// The child of node n for byte b is node base + b, if that node's parent is n.
    struct Node {
        std::uint32_t base = 0, parent = no_parent;
        std::int32_t id = -1;  // the token that ends here; -1: none
    };

    std::uint32_t free_base(const std::vector<unsigned char>& labels);

    std::vector<Node> nodes_;
    std::size_t first_free_ = 1;  // nodes before this one are taken
};

}  // namespace gradtile

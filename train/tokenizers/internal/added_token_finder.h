#pragma once
/// Finds added tokens in text. The leftmost token is found first. If several tokens begin at the same place,
/// the longest one is found.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gradtile {

class AddedTokenFinder {
  public:
    struct Found {
        std::size_t begin = 0, length = 0;  ///< length 0: no token was found
        std::int32_t id = -1;
    };

    bool empty() const { return ids_.empty(); }

    /// Adds a token to search for. `text` must not be empty and must outlive the finder.
    void add(std::string_view text, std::int32_t id) {
        ids_[text] = id;
        auto& lengths = lengths_[static_cast<unsigned char>(text.front())];
        const auto place = std::ranges::lower_bound(lengths, text.size(), std::greater{});
        if (place == lengths.end() || *place != text.size()) lengths.insert(place, text.size());
    }

    Found find(std::string_view text, std::size_t from) const {
        for (std::size_t at = from; at < text.size() && !empty(); ++at)
            for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
                if (length > text.size() - at) continue;
                const auto token = ids_.find(text.substr(at, length));
                if (token != ids_.end()) return {at, length, token->second};
            }
        return {text.size(), 0, -1};
    }

    std::int32_t id_of(std::string_view text) const {
        const auto token = ids_.find(text);
        return token == ids_.end() ? -1 : token->second;
    }

  private:
    std::unordered_map<std::string_view, std::int32_t> ids_;
    // Lengths of the tokens that begin with a byte, in decreasing order.
    std::array<std::vector<std::size_t>, 256> lengths_;
};

}  // namespace gradtile

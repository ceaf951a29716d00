#pragma once
/// A hash table that finds tokens by their bytes. A node-based table took five times its memory.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/tokenizers/internal/scaled_hash.h>

namespace gradtile {

class TokenIndex {
  public:
    /// Indexes the tokens that are not empty. `tokens` must outlive the index and must not change. Of equal
    /// tokens, the first one is found.
    explicit TokenIndex(const std::vector<std::string>& tokens)
        : tokens_(&tokens), slots_(2 * tokens.size() + 1, -1) {
        for (std::size_t id = 0; id < tokens.size(); ++id) {
            if (tokens[id].empty()) continue;
            std::int32_t& slot = slots_[place_of(tokens[id])];
            if (slot < 0) {
                slot = static_cast<std::int32_t>(id);
            } else if (repeated_ < 0) {
                repeated_ = static_cast<std::int32_t>(id);
            }
        }
    }

    /// Returns a token's id; -1 if there is none.
    std::int32_t find(std::string_view bytes) const { return slots_[place_of(bytes)]; }
    /// Returns the first id whose token equals an earlier one; -1 if all tokens differ.
    std::int32_t repeated() const { return repeated_; }

  private:
    /// Returns the slot that holds the token, or the free slot where it would be.
    std::size_t place_of(std::string_view bytes) const {
        std::size_t slot = scaled_hash(std::hash<std::string_view>()(bytes), slots_.size());
        while (slots_[slot] >= 0 && (*tokens_)[static_cast<std::size_t>(slots_[slot])] != bytes)
            slot = slot + 1 == slots_.size() ? 0 : slot + 1;
        return slot;
    }

    const std::vector<std::string>* tokens_;
    std::vector<std::int32_t> slots_;  // ids; -1: free
    std::int32_t repeated_ = -1;
};

}  // namespace gradtile

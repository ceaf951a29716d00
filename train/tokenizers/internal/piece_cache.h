#pragma once
/// Caches the token ids of recent pieces. Most pieces in a text are frequent words, so their ids are often in
/// the cache.
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace gradtile {

/// Each hash value has one slot, and a newer piece replaces an older one. Only short pieces with few tokens
/// are stored.
class PieceCache {
  public:
    static constexpr std::size_t max_piece_bytes = 24;
    static constexpr std::size_t max_ids = 5;

    struct Key {
        std::array<std::uint64_t, 3> words{};
        std::uint32_t length = 0;
        bool operator==(const Key&) const = default;
        std::uint64_t hash() const {
            std::uint64_t h = words[0] * 0x9E3779B97F4A7C15u ^ length;
            h = (h ^ h >> 32 ^ words[1]) * 0xD6E8FEB86659FD93u;
            h = (h ^ h >> 32 ^ words[2]) * 0x9E3779B97F4A7C15u;
            return h ^ h >> 29;
        }
    };

    struct Slot {
        Key key{};  // a key with length 0 marks a free slot
        std::uint32_t count = 0;
        std::array<std::int32_t, max_ids> ids{};
        std::span<const std::int32_t> tokens() const { return {ids.data(), count}; }
    };

    /// Returns the key for a piece with 1 to max_piece_bytes bytes. `readable` counts the bytes from the
    /// piece's start to the text's end.
    static Key key_of(std::string_view piece, std::size_t readable) {
        Key key{.length = static_cast<std::uint32_t>(piece.size())};
        if (readable < sizeof(key.words)) {
            std::memcpy(key.words.data(), piece.data(), piece.size());
            return key;
        }
        // Copies a constant number of bytes and masks the rest, which is faster than copying a variable
        // number of bytes.
        std::memcpy(key.words.data(), piece.data(), sizeof(key.words));
        for (std::size_t i = 0; i < key.words.size(); ++i) {
            const std::size_t used = std::min<std::size_t>(piece.size() - std::min(piece.size(), 8 * i), 8);
            key.words[i] &= used == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * used) - 1;
        }
        return key;
    }

    Slot& slot_of(const Key& key) { return slots_[key.hash() % slot_count]; }

    static void store(Slot& slot, const Key& key, std::span<const std::int32_t> ids) {
        if (ids.size() > max_ids) return;
        slot.key = key;
        slot.count = static_cast<std::uint32_t>(ids.size());
        std::copy(ids.begin(), ids.end(), slot.ids.begin());
    }

  private:
    // a slot has 56 bytes, so the slots take about as much memory as an L2 cache
    static constexpr std::size_t slot_count = 1 << 15;
    std::vector<Slot> slots_ = std::vector<Slot>(slot_count);
};

/// Lends a tokenizer's caches, so that the pieces of one text are known in the next. There are as many caches
/// as threads that have worked at the same time.
class PieceCaches {
  public:
    std::unique_ptr<PieceCache> lend() {
        const std::scoped_lock lock(mutex_);
        if (idle_.empty()) {
            idle_.reserve(count_ + 1);  // so that take_back never fails
            auto cache = std::make_unique<PieceCache>();
            ++count_;
            return cache;
        }
        std::unique_ptr<PieceCache> cache = std::move(idle_.back());
        idle_.pop_back();
        return cache;
    }
    void take_back(std::unique_ptr<PieceCache> cache) noexcept {
        const std::scoped_lock lock(mutex_);
        idle_.push_back(std::move(cache));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<PieceCache>> idle_;
    std::size_t count_ = 0;
};

}  // namespace gradtile

#pragma once
/// Keys and values for the tokens that a model has read. With them, next-token logits cost one row per matrix
/// product instead of the whole text (Pope et al. 2022, "Efficiently Scaling Transformer Inference", section
/// 2). They are in blocks that the texts take from a common pool as they grow (Kwon et al. 2023, "Efficient
/// Memory Management for Large Language Model Serving with PagedAttention", section 4), so that memory
/// follows the tokens that exist, and a short text beside a long one takes little.
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include <gradtile/attention/decode.h>
#include <gradtile/core/tensor.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

struct EqualTexts;
struct PackedTexts;

/// Holds up to capacity() tokens for each of several texts. Each text has a slot, and takes blocks with
/// resize(). Keys with rotary or learned positions depend on their tokens' positions. So to drop the first
/// tokens, clear the cache and read the other tokens again. To drop the last tokens, read the next token with
/// a smaller PackedTexts::Text::start.
class KeyValueCache {
  public:
    /// A text wastes at most one block less one token. The kernels read a block's keys as fast as contiguous
    /// ones, because a token's heads are adjacent in both.
    static constexpr std::int64_t block_tokens = 64;

    /// Allocates blocks for `slots` texts with `tokens` tokens each, from ctx's allocator; -1: config.context
    /// tokens, which is also the most. Every text has its blocks.
    KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t slots = 1,
                  std::int64_t tokens = -1);
    /// The same without blocks, so without memory for tokens.
    static KeyValueCache without_blocks(const Context& ctx, const ModelConfig& config, DType dtype,
                                        std::int64_t slots, std::int64_t tokens);
    KeyValueCache(const KeyValueCache&) = delete;
    KeyValueCache& operator=(const KeyValueCache&) = delete;
    KeyValueCache(KeyValueCache&&) = default;
    KeyValueCache& operator=(KeyValueCache&&) = default;

    std::int64_t slots() const { return std::ssize(blocks_of_slot_); }
    /// The most tokens of a text.
    std::int64_t capacity() const { return capacity_; }
    /// A layer's keys and values [blocks, block_tokens, Hkv, D], and the table [slots, blocks of a text],
    /// which all layers share. With config.key_offset, a text has a row for one more token, because the
    /// columns that keys have from the token before are written with that token.
    const attention::DecodeCache& layer(std::int64_t number) const {
        return layers_[static_cast<std::size_t>(number)];
    }

    /// How many blocks a text of `tokens` tokens takes.
    std::int64_t blocks_of_text(std::int64_t tokens) const;
    /// How many blocks the text in a slot has.
    std::int64_t blocks_of_slot(std::int64_t slot) const {
        return std::ssize(blocks_of_slot_[static_cast<std::size_t>(slot)]);
    }
    /// The pool's blocks, and those among them that no text has.
    std::int64_t blocks() const { return blocks_; }
    std::int64_t free_blocks() const { return std::ssize(free_); }
    /// Makes the pool larger: allocates its layers again, one after the other, and copies the texts' blocks,
    /// which get other numbers.
    void add_blocks(const Context& ctx, std::int64_t count);
    /// Changes the most tokens of a text; no text may have more.
    void set_capacity(const Context& ctx, std::int64_t tokens);
    /// Gives a text blocks for `tokens` tokens, or takes those beyond back. Throws Error when the pool has
    /// too few.
    void resize(std::int64_t slot, std::int64_t tokens);
    /// Copies what resize() changed to the device's table, which keeps its address, in stream order.
    void update_table(const Context& ctx);

    /// The first of a text's rows 0 to `tokens` - 1 in a layer's blocks, if they lie one after the other;
    /// else -1.
    std::int64_t first_row(std::int64_t slot, std::int64_t tokens) const;
    /// Copies rows [count, length, H, columns] to the texts' rows from `from` on. `kv` is a layer's k or v,
    /// or columns of it.
    void write(const Context& ctx, const Tensor& kv, const EqualTexts& texts, std::int64_t from,
               const Tensor& rows) const;
    /// Returns `length` rows of each text, starting at row `from`: [count, length, H, columns]. A view if the
    /// blocks of all texts allow one, else a copy. A dry run counts the copy of one text.
    Tensor read(const Context& ctx, const Tensor& kv, const EqualTexts& texts, std::int64_t from,
                std::int64_t length) const;

    /// Throws Error unless every text's tokens fit its slot.
    void check_fits(const PackedTexts& pass) const;
    /// Bytes for one text's keys and values.
    static double bytes_of_text(const ModelConfig& config, DType dtype, std::int64_t tokens);

  private:
    struct Empty {};
    KeyValueCache(Empty, const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t slots,
                  std::int64_t tokens);
    void check_blocks(const Tensor& kv) const;
    std::optional<Tensor> view(const Tensor& kv, const EqualTexts& texts, std::int64_t from,
                               std::int64_t length) const;
    template <class Visit>
    void for_each_run(const Tensor& kv, std::int64_t slot, std::int64_t from, std::int64_t length,
                      Visit&& visit) const;

    std::int64_t capacity_, more_rows_;  // rows that a text has beyond its tokens
    std::int64_t blocks_ = 0;
    std::vector<attention::DecodeCache> layers_;
    std::vector<std::vector<std::int32_t>> blocks_of_slot_;
    std::set<std::int32_t> free_;
    bool is_table_old_ = true;
};

/// The next tokens for several texts with different lengths, in one pass. Each text has a slot in a cache,
/// which already holds the text's first `start` tokens. Matrix products and norms process all texts' tokens
/// together.
struct PackedTexts {
    struct Text {
        std::int64_t slot = 0;    ///< in the cache
        std::int64_t start = 0;   ///< how many of the text's tokens are cached
        std::int64_t length = 0;  ///< tokens in this pass, at least 1
    };
    std::vector<Text> texts;  ///< in slot order
    Tensor tokens;            ///< int32 [1, N]: the first text's tokens, then the second's, ...
    Tensor positions;         ///< int32 [1, N]: start, start + 1, ... for each text
};
/// A text and the tokens that it reads in a pass.
struct TextToRead {
    std::int64_t slot = 0, start = 0;
    std::span<const std::int32_t> tokens;
};
/// Copies the tokens to ctx's device.
PackedTexts packed_texts(const Context& ctx, std::span<const TextToRead> texts);

/// Texts in a pass that have neighbouring slots, equal start and equal length, so that one attention call
/// computes all of them.
struct EqualTexts {
    PackedTexts::Text first;
    std::int64_t count = 0;
    std::int64_t begin = 0;  ///< index of their first token in the pass

    /// These texts' rows in x [1, N, H, D], as [count, length, H, D].
    Tensor rows_of(const Tensor& x) const;
};
/// Combines runs of texts into as few groups as possible. Texts with cached tokens are in one group only if
/// their blocks lie at equal distances, so that KeyValueCache::read() copies nothing.
std::vector<EqualTexts> equal_texts(std::span<const PackedTexts::Text> texts, const KeyValueCache& cache);

}  // namespace gradtile

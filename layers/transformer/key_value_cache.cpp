#include <gradtile/layers/transformer/key_value_cache.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

std::int64_t more_rows_of(const ModelConfig& config) {
    return config.key_offset ? 1 : 0;
}

/// All blocks' rows [rows, H, D] in blocks [blocks, block_tokens, H, D].
Tensor all_rows(const Tensor& kv) {
    return kv.reshape({kv.size(0) * kv.size(1), kv.size(2), kv.size(3)});
}

/// The first of `count` neighbouring blocks, or the first block if there are no such neighbours.
std::set<std::int32_t>::iterator first_run(const std::set<std::int32_t>& blocks, std::int64_t count) {
    auto begin = blocks.begin();
    std::int64_t length = 0;
    for (auto block = blocks.begin(); block != blocks.end() && length < count; ++block) {
        if (*block != *begin + length) {
            begin = block;
            length = 0;
        }
        ++length;
    }
    return length == count ? begin : blocks.begin();
}

std::size_t checked_slots(std::int64_t slots) {
    check(slots >= 0, "key/value cache: ", slots, " slots; expected 0 or more");
    return static_cast<std::size_t>(slots);
}

}  // namespace

KeyValueCache::KeyValueCache(Empty, const Context& ctx, const ModelConfig& config, DType dtype,
                             std::int64_t slots, std::int64_t tokens)
    : capacity_(tokens), more_rows_(more_rows_of(config)), blocks_of_slot_(checked_slots(slots)) {
    check(capacity_ >= 1 && capacity_ <= config.context, "key/value cache: ", capacity_,
          " tokens; expected 1 to the context, ", config.context);
    const Tensor none = empty(ctx, {0, block_tokens, config.key_value_heads(), config.head_dim()}, dtype);
    layers_.assign(static_cast<std::size_t>(config.layers), {.k = none, .v = none});
    set_capacity(ctx, capacity_);
}

KeyValueCache::KeyValueCache(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t slots,
                             std::int64_t tokens)
    : KeyValueCache(Empty{}, ctx, config, dtype, slots, tokens < 0 ? config.context : tokens) {
    add_blocks(ctx, slots * blocks_of_text(capacity_));
    for (std::int64_t slot = 0; slot < slots; ++slot) resize(slot, capacity_);
    update_table(ctx);
}

KeyValueCache KeyValueCache::without_blocks(const Context& ctx, const ModelConfig& config, DType dtype,
                                            std::int64_t slots, std::int64_t tokens) {
    return {Empty{}, ctx, config, dtype, slots, tokens};
}

std::int64_t KeyValueCache::blocks_of_text(std::int64_t tokens) const {
    return tokens == 0 ? 0 : ceil_div(tokens + more_rows_, block_tokens);
}

/// All contents are copied anyway, so each text's blocks become neighbours, with a share of the free blocks
/// after them: texts that grow equally can then be read without copies until the pool grows again.
void KeyValueCache::add_blocks(const Context& ctx, std::int64_t count) {
    const std::int64_t used = blocks_ - free_blocks(), all = blocks_ + count,
                       texts = std::ranges::count_if(blocks_of_slot_,
                                                     [](const auto&own) { return !own.empty(); }),
                       gap = texts == 0 ? 0 : (all - used) / texts;
    std::vector<std::vector<std::int32_t>> places = blocks_of_slot_;
    std::int32_t next = 0;
    free_.clear();
    const auto leave_free = [&](std::int64_t end) {
        while (next < end) free_.insert(next++);
    };
    for (std::vector<std::int32_t>& own : places) {
        if (own.empty()) continue;
        for (std::int32_t& place : own) place = next++;
        leave_free(next + gap);
    }
    leave_free(all);
    const auto move = [&](Tensor& kv) {
        const Tensor larger = empty(ctx, {all, kv.size(1), kv.size(2), kv.size(3)}, kv.dtype());
        for (std::size_t slot = 0; slot < places.size(); ++slot) {
            const std::vector<std::int32_t>& own = blocks_of_slot_[slot];
            for (std::size_t begin = 0, end; begin < own.size(); begin = end) {
                for (end = begin + 1; end < own.size() && own[end] == own[end - 1] + 1;) ++end;
                const auto length = static_cast<std::int64_t>(end - begin);
                copy(ctx, larger.slice(0, places[slot][begin], length), kv.slice(0, own[begin], length));
            }
        }
        kv = larger;
    };
    for (attention::DecodeCache& layer : layers_) {
        move(layer.k);
        move(layer.v);
    }
    blocks_of_slot_ = std::move(places);
    blocks_ = all;
    is_table_old_ = true;
    update_table(ctx);
}

void KeyValueCache::set_capacity(const Context& ctx, std::int64_t tokens) {
    capacity_ = tokens;
    const Tensor table = empty(ctx, {slots(), blocks_of_text(tokens)}, DType::i32);
    for (attention::DecodeCache& layer : layers_) layer.table = table;
    is_table_old_ = true;
    update_table(ctx);
}

void KeyValueCache::resize(std::int64_t slot, std::int64_t tokens) {
    check(slot >= 0 && slot < slots() && tokens >= 0 && tokens <= capacity_, "key/value cache: ", tokens,
          " tokens in slot ", slot, "; it has ", slots(), " slots of at most ", capacity_, " tokens");
    std::vector<std::int32_t>& blocks = blocks_of_slot_[static_cast<std::size_t>(slot)];
    const std::int64_t wanted = blocks_of_text(tokens);
    check(wanted - std::ssize(blocks) <= std::ssize(free_), "key/value cache: a text of ", tokens,
          " tokens takes ", wanted, " blocks; it has ", blocks.size(), ", and ", free_.size(), " are free");
    is_table_old_ = is_table_old_ || wanted != std::ssize(blocks);
    for (; std::ssize(blocks) > wanted; blocks.pop_back()) free_.insert(blocks.back());
    while (std::ssize(blocks) < wanted) {
        // The block after the text's last one, so that the text can be read without a copy; else the last
        // free one, which is the farthest from another text's next block.
        auto block = blocks.empty() ? first_run(free_, wanted) : free_.find(blocks.back() + 1);
        if (block == free_.end()) block = std::prev(free_.end());
        blocks.push_back(*block);
        free_.erase(block);
    }
}

void KeyValueCache::update_table(const Context& ctx) {
    if (!is_table_old_ || ctx.is_planning()) return;
    const Tensor& table = layers_.front().table;
    std::vector<std::int32_t> entries(static_cast<std::size_t>(table.elements()), -1);
    for (std::int64_t slot = 0; slot < slots(); ++slot)
        std::ranges::copy(blocks_of_slot_[static_cast<std::size_t>(slot)],
                          entries.begin() + slot * table.size(1));
    is_table_old_ = false;
    if (ctx.device().is_cpu()) {
        std::ranges::copy(entries, table.data<std::int32_t>());
        return;
    }
    // Without a tensor beside the table, because the system's allocator would wait for the device twice.
    cuda::copy_bytes(table.raw_data(), reinterpret_cast<const std::byte*>(entries.data()), table.bytes(),
                     ctx.device(), ctx.stream());
    cuda::synchronize(ctx.device(), ctx.stream());  // `entries` ends here
}

void KeyValueCache::check_fits(const PackedTexts& pass) const {
    std::int64_t tokens = 0, next_slot = 0;
    for (const auto& [slot, start, length] : pass.texts) {
        check(slot >= next_slot && slot < slots(), "transformer: a text in slot ", slot,
              " of a cache; expected slots in increasing order, below ", slots());
        check(start >= 0 && length >= 1 && start + length <= capacity_, "transformer: ", length,
              " tokens after ", start, " in the cache; it holds ", capacity_);
        next_slot = slot + 1;
        tokens += length;
    }
    const Shape expected{1, tokens};
    for (const Tensor* x : {&pass.tokens, &pass.positions})
        check(tokens > 0 && x->defined() && x->dtype() == DType::i32 && x->shape() == expected,
              "transformer: packed texts of ", tokens, " tokens; expected at least one, and int32 ", expected,
              " for tokens and positions");
}

void KeyValueCache::check_blocks(const Tensor& kv) const {
    check(kv.rank() == 4 && kv.size(0) == blocks_ && kv.size(1) == block_tokens, "key/value cache: blocks ",
          kv, "; expected [", blocks_, ", ", block_tokens, ", H, columns]");
}

/// Calls visit(rows [1, n, H, D], index of the first row) for a text's rows in neighbouring blocks.
template <class Visit>
void KeyValueCache::for_each_run(const Tensor& kv, std::int64_t slot, std::int64_t from, std::int64_t length,
                                 Visit&& visit) const {
    const std::vector<std::int32_t>& blocks = blocks_of_slot_[static_cast<std::size_t>(slot)];
    check(from + length <= std::ssize(blocks) * block_tokens, "key/value cache: rows ", from, " to ",
          from + length - 1, " of slot ", slot, ", whose text has ", blocks.size(), " blocks");
    const Tensor rows = all_rows(kv);
    for (std::int64_t begin = from; begin < from + length;) {
        auto block = static_cast<std::size_t>(begin / block_tokens);
        const std::int64_t row = blocks[block] * block_tokens + begin % block_tokens;
        std::int64_t end = (begin / block_tokens + 1) * block_tokens;
        for (; end < from + length && blocks[block + 1] == blocks[block] + 1; ++block) end += block_tokens;
        end = std::min(end, from + length);
        visit(rows.slice(0, row, end - begin).reshape({1, end - begin, kv.size(2), kv.size(3)}), begin);
        begin = end;
    }
}

std::int64_t KeyValueCache::first_row(std::int64_t slot, std::int64_t tokens) const {
    const std::vector<std::int32_t>& blocks = blocks_of_slot_[static_cast<std::size_t>(slot)];
    const auto used = static_cast<std::size_t>(ceil_div(tokens, block_tokens));
    if (used == 0 || used > blocks.size()) return -1;
    for (std::size_t i = 1; i < used; ++i)
        if (blocks[i] != blocks[i - 1] + 1) return -1;
    return blocks.front() * block_tokens;
}

/// The texts' rows as a view, if all texts' rows lie at equal distances.
std::optional<Tensor> KeyValueCache::view(const Tensor& kv, const EqualTexts& texts, std::int64_t from,
                                          std::int64_t length) const {
    const std::int64_t slot = texts.first.slot, count = texts.count, end = from + length,
                       begin = first_row(slot, end);
    const std::int64_t step = count > 1 ? first_row(slot + 1, end) - begin : end;
    for (std::int64_t i = 0; i < count; ++i)
        if (begin < 0 || step < end || first_row(slot + i, end) != begin + i * step) return std::nullopt;
    if (begin + count * step > blocks_ * block_tokens) return std::nullopt;
    return all_rows(kv)
        .slice(0, begin, count * step)
        .reshape({count, step, kv.size(2), kv.size(3)})
        .slice(1, from, length);
}

void KeyValueCache::write(const Context& ctx, const Tensor& kv, const EqualTexts& texts, std::int64_t from,
                          const Tensor& rows) const {
    check_blocks(kv);
    check(rows.rank() == 4 && rows.size(0) == texts.count && rows.size(2) == kv.size(2) &&
              rows.size(3) == kv.size(3),
          "key/value cache: rows ", rows, " for ", texts.count, " texts in ", kv,
          "; expected [texts, length, H, columns]");
    if (const auto to = view(kv, texts, from, rows.size(1))) return copy(ctx, *to, rows);
    for (std::int64_t i = 0; i < texts.count; ++i)
        for_each_run(kv, texts.first.slot + i, from, rows.size(1), [&](const Tensor& to, std::int64_t begin) {
            copy(ctx, to, rows.slice(0, i, 1).slice(1, begin - from, to.size(1)));
        });
}

Tensor KeyValueCache::read(const Context& ctx, const Tensor& kv, const EqualTexts& texts, std::int64_t from,
                           std::int64_t length) const {
    check_blocks(kv);
    const Shape shape{texts.count, length, kv.size(2), kv.size(3)};
    // Texts whose blocks are not neighbours are in groups of their own.
    if (ctx.is_planning()) return empty(ctx, {1, length, kv.size(2), kv.size(3)}, kv.dtype()).expand(shape);
    if (auto rows = view(kv, texts, from, length)) return *std::move(rows);
    const Tensor copied = empty(ctx, shape, kv.dtype());
    for (std::int64_t i = 0; i < texts.count; ++i)
        for_each_run(kv, texts.first.slot + i, from, length, [&](const Tensor& rows, std::int64_t begin) {
            copy(ctx, copied.slice(0, i, 1).slice(1, begin - from, rows.size(1)), rows);
        });
    return copied;
}

double KeyValueCache::bytes_of_text(const ModelConfig& config, DType dtype, std::int64_t tokens) {
    const std::int64_t rows = ceil_div(tokens + more_rows_of(config), block_tokens) * block_tokens;
    const std::int64_t elements = 2 * config.layers * rows * config.key_value_heads() * config.head_dim();
    return static_cast<double>(elements) * static_cast<double>(size_of(dtype));
}

PackedTexts packed_texts(const Context& ctx, std::span<const TextToRead> texts) {
    PackedTexts pass;
    std::vector<std::int32_t> tokens, positions;
    for (const TextToRead& text : texts) {
        pass.texts.push_back({text.slot, text.start, std::ssize(text.tokens)});
        tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
        for (std::int64_t i = 0; i < std::ssize(text.tokens); ++i)
            positions.push_back(static_cast<std::int32_t>(text.start + i));
    }
    pass.tokens = from_host(ctx, tokens, {1, std::ssize(tokens)});
    pass.positions = from_host(ctx, positions, {1, std::ssize(positions)});
    return pass;
}

Tensor EqualTexts::rows_of(const Tensor& x) const {
    if (count == 1 && first.length == x.size(1)) return x;  // on a CPU, views of a token take measurable time
    return x.slice(1, begin, count * first.length).reshape({count, first.length, x.size(2), x.size(3)});
}

std::vector<EqualTexts> equal_texts(std::span<const PackedTexts::Text> texts, const KeyValueCache& cache) {
    std::vector<EqualTexts> groups;
    std::int64_t begin = 0;
    std::int64_t last_row = -1, step = 0;  // of the last group; step 0: it has one text
    for (const PackedTexts::Text& text : texts) {
        const std::int64_t row = text.start == 0 ? -1 : cache.first_row(text.slot, text.start + text.length);
        const bool are_equal = !groups.empty() && text.start == groups.back().first.start &&
                               text.length == groups.back().first.length &&
                               text.slot == groups.back().first.slot + groups.back().count;
        const bool joins = are_equal && (text.start == 0 || (row >= 0 && last_row >= 0 && row > last_row &&
                                                             (step == 0 || row - last_row == step)));
        step = joins ? row - last_row : 0;
        last_row = row;
        if (joins) {
            ++groups.back().count;
        } else {
            groups.push_back({text, 1, begin});
        }
        begin += text.length;
    }
    return groups;
}

}  // namespace gradtile

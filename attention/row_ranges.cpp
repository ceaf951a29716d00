#include <gradtile/attention/row_ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::masks {
namespace {

constexpr std::int64_t max_tokens = std::numeric_limits<std::int32_t>::max();

void check_length(const char* mask, const char* name, std::int64_t length, std::int64_t max = max_tokens) {
    check(length >= 0 && length <= max, "masks::", mask, ": ", name, ' ', length, "; expected 0 to ", max);
}

/// The sum of lengths, which must not be larger than an int32.
std::int64_t checked_sum(const char* mask, const char* name, std::int64_t first,
                         std::span<const std::int64_t> lengths) {
    std::int64_t sum = first;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
        check_length(mask, concat(name, '[', n, ']').c_str(), lengths[n], max_tokens - sum);
        sum += lengths[n];
    }
    return sum;
}

/// The ranges of one key after the other.
class Keys {
  public:
    explicit Keys(std::int64_t count) { numbers_.reserve(static_cast<std::size_t>(4 * count)); }
    void add(std::int64_t begin, std::int64_t end, std::int64_t second_begin = 0,
             std::int64_t second_end = 0) {
        for (const std::int64_t number : {begin, end, second_begin, second_end})
            numbers_.push_back(static_cast<std::int32_t>(number));
    }
    Tensor tensor(const Context& ctx) const {
        return from_host(ctx, numbers_, {1, 1, std::ssize(numbers_) / 4, 4});
    }

  private:
    std::vector<std::int32_t> numbers_;
};

}  // namespace

Tensor causal(const Context& ctx, std::int64_t tokens) {
    check_length("causal", "tokens", tokens);
    Keys keys(tokens);
    for (std::int64_t j = 0; j < tokens; ++j) keys.add(j, tokens);
    return keys.tensor(ctx);
}

Tensor documents(const Context& ctx, std::span<const std::int64_t> lengths) {
    Keys keys(checked_sum("documents", "lengths", 0, lengths));
    std::int64_t first = 0;
    for (const std::int64_t length : lengths) {
        for (std::int64_t j = 0; j < length; ++j) keys.add(first, first + length);
        first += length;
    }
    return keys.tensor(ctx);
}

Tensor prefix(const Context& ctx, std::int64_t tokens, std::int64_t prefix) {
    check_length("prefix", "tokens", tokens);
    check_length("prefix", "prefix", prefix, tokens);
    Keys keys(tokens);
    for (std::int64_t j = 0; j < tokens; ++j) keys.add(j < prefix ? 0 : j, tokens);
    return keys.tensor(ctx);
}

Tensor shared_prompt(const Context& ctx, std::int64_t prompt, std::span<const std::int64_t> answers) {
    check_length("shared_prompt", "prompt", prompt);
    const std::int64_t tokens = checked_sum("shared_prompt", "answers", prompt, answers);
    Keys keys(tokens);
    for (std::int64_t j = 0; j < prompt; ++j) keys.add(j, tokens);
    std::int64_t first = prompt;
    for (const std::int64_t length : answers) {
        for (std::int64_t j = first; j < first + length; ++j) keys.add(j, first + length);
        first += length;
    }
    return keys.tensor(ctx);
}

Tensor sliding_window(const Context& ctx, std::int64_t tokens, const Window& window, std::int64_t global) {
    check_length("sliding_window", "tokens", tokens);
    check_length("sliding_window", "global", global, tokens);
    check(window.left >= -1 && window.right >= -1, "masks::sliding_window: window {", window.left, ", ",
          window.right, "}; expected sides of -1 (unbounded) or at least 0");
    const auto side = [&](std::int64_t length) { return length < 0 ? tokens : std::min(length, tokens); };
    Keys keys(tokens);
    for (std::int64_t j = 0; j < tokens; ++j) {
        const std::int64_t begin = std::max<std::int64_t>(0, j - side(window.right)),
                           end = std::min(tokens, j + side(window.left) + 1);
        if (j < global) {
            keys.add(0, tokens);
        } else if (begin <= global) {
            keys.add(0, std::max(end, global));
        } else {
            keys.add(begin, end, 0, global);
        }
    }
    return keys.tensor(ctx);
}

Tensor tree(const Context& ctx, std::int64_t context, std::span<const std::int64_t> parents) {
    const std::int64_t nodes = std::ssize(parents);
    check_length("tree", "nodes", nodes);
    check_length("tree", "context", context, max_tokens - nodes);
    // ends[n] is the node after n's last descendant. A node that is not on the path to the last one is
    // closed.
    std::vector<std::int64_t> ends(parents.size(), nodes), path;
    for (std::int64_t n = 0; n < nodes; ++n) {
        const std::int64_t parent = parents[static_cast<std::size_t>(n)];
        while (!path.empty() && path.back() != parent) {
            ends[static_cast<std::size_t>(path.back())] = n;
            path.pop_back();
        }
        check(parent == -1 || !path.empty(), "masks::tree: node ", n, " has parent ", parent,
              "; expected -1, the node before it or one of that node's ancestors (depth-first order)");
        path.push_back(n);
    }
    Keys keys(context + nodes);
    for (std::int64_t j = 0; j < context; ++j) keys.add(0, nodes);
    for (std::int64_t n = 0; n < nodes; ++n) keys.add(n, ends[static_cast<std::size_t>(n)]);
    return keys.tensor(ctx);
}

Tensor block_sparse(const Context& ctx, const Blocks& blocks) {
    const auto& [queries, key_count, block_rows, block_keys, visible] = blocks;
    check_length("block_sparse", "queries", queries);
    check_length("block_sparse", "keys", key_count);
    check(block_rows >= 1 && block_keys >= 1, "masks::block_sparse: blocks of ", block_rows, " x ",
          block_keys, "; expected at least 1 x 1");
    const std::int64_t row_blocks = ceil_div(queries, block_rows),
                       key_blocks = ceil_div(key_count, block_keys);
    check(std::ssize(visible) == row_blocks * key_blocks, "masks::block_sparse: ", visible.size(),
          " blocks; expected ", row_blocks, " x ", key_blocks);
    Keys keys(key_count);
    for (std::int64_t c = 0; c < key_blocks; ++c) {
        std::vector<std::int64_t> ends;  // begin and end of each run
        for (std::int64_t r = 0; r <= row_blocks; ++r) {
            const bool is_visible = r < row_blocks && visible[static_cast<std::size_t>(r * key_blocks + c)];
            if (is_visible != (ends.size() % 2 == 1)) ends.push_back(std::min(r * block_rows, queries));
        }
        check(ends.size() <= 4, "masks::block_sparse: ", ends.size() / 2,
              " runs of row blocks see key block ", c, "; expected at most 2");
        ends.resize(4);
        for (std::int64_t j = c * block_keys; j < std::min((c + 1) * block_keys, key_count); ++j)
            keys.add(ends[0], ends[1], ends[2], ends[3]);
    }
    return keys.tensor(ctx);
}

}  // namespace gradtile::attention::masks

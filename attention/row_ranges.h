#pragma once
/// Row ranges (Options::row_ranges) of well-known masks. Every function returns contiguous int32 [1, 1, Sk,
/// 4] on ctx's device, and throws Error "masks::NAME: ..." on other arguments. Causal attention, windows and
/// packed sequences need no ranges: Options has them, and both masks may be combined.
#include <span>
#include <vector>

#include <gradtile/attention/attention.h>

namespace gradtile::attention::masks {

/// A row sees no key after its own position.
Tensor causal(const Context& ctx, std::int64_t tokens);
/// Documents that follow each other: a row sees the keys of its own document. With Options::causal, the same
/// as packed sequences, except that ALiBi, dropout and windows then count from the document's start. Lengths
/// may be 0.
Tensor documents(const Context& ctx, std::span<const std::int64_t> lengths);
/// Prefix-LM (Raffel et al. 2020, section 3.2.1): all rows see the first `prefix` keys, and a row after the
/// prefix also sees the keys from there to its own position.
Tensor prefix(const Context& ctx, std::int64_t tokens, std::int64_t prefix);
/// Several answers to one prompt, which follow it in one sequence: a row sees the prompt and its own answer,
/// no key after its own position. The positions of every answer must continue the prompt's.
Tensor shared_prompt(const Context& ctx, std::int64_t prompt, std::span<const std::int64_t> answers);
/// A sliding window with global tokens (Beltagy et al. 2020, "Longformer"): row i sees the keys j with
/// i - left <= j <= i + right, where -1 is unbounded. All rows see the first `global` keys, and the first
/// `global` rows see all keys. Options::causal makes it the mask of a language model.
Tensor sliding_window(const Context& ctx, std::int64_t tokens, const Window& window, std::int64_t global);
/// Drafts that form a tree (Miao et al. 2024, "SpecInfer"): node n sees the first `context` keys, its
/// ancestors and itself. Rows are the nodes, and keys are the context and then the nodes. parents[n] is node
/// n's parent, -1 for a root. The nodes must be in depth-first order: each node's descendants follow it.
Tensor tree(const Context& ctx, std::int64_t context, std::span<const std::int64_t> parents);

/// Blocks of pairs: rows [r * block_rows, ..) see keys [c * block_keys, ..) if visible[r * key_blocks + c].
/// The last blocks may be incomplete.
struct Blocks {
    std::int64_t queries = 0, keys = 0;
    std::int64_t block_rows = 1, block_keys = 1;
    std::vector<bool> visible = {};  ///< [row blocks, key blocks]
};
/// Each key block may be seen by at most two runs of neighbouring row blocks.
Tensor block_sparse(const Context& ctx, const Blocks& blocks);

}  // namespace gradtile::attention::masks

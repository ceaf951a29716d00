#pragma once
/// Documents that lie one after the other in a batch of token windows.
#include <span>

#include <gradtile/attention/ring_attention.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Which tokens of a window see each other, and each token's position. All tensors have fixed shapes, so that
/// a captured CUDA graph can be replayed with other documents. With `offsets` attention is causal within each
/// document, and positions start again at 0 in each; `row_ranges` are another mask. At most one is set.
struct Documents {
    /// int32 [B D + 1]. Window b has D documents, which may be empty: documents b D to (b + 1) D - 1.
    /// Document d has tokens offsets[d] to offsets[d + 1] - 1 in the batch [B,T], in row-major order. The
    /// last offset is B T.
    Tensor offsets = {};
    Tensor positions = {};  ///< int32 [B,T]: each token's index in its document
    /// int32 [B,1,T,4], aligned to 16 bytes: the whole mask, as attention::Options::row_ranges. Several
    /// tokens of a document may have the same position.
    Tensor row_ranges = {};
    /// The processes that share each sequence: a row [T] is this process's part of a causal sequence of T *
    /// ring->size() tokens, in zigzag order, and `positions` are their indices in the sequence or document.
    /// With a ring, row_ranges are those of all ranks' keys (attention::ring_forward), and offsets are
    /// refused.
    const attention::Ring* ring = nullptr;

    explicit operator bool() const { return positions.defined(); }
    /// Whether attention reads the batch as packed sequences.
    bool are_sequences() const { return offsets.defined(); }
    /// All positions are below this number.
    std::int64_t end_position() const { return positions.size(1) * (ring != nullptr ? ring->size() : 1); }
    /// D, the number of documents per window, which is the same for all windows (some documents may be
    /// empty). Throws Error if offsets and positions disagree.
    std::int64_t per_window() const {
        const std::int64_t documents = offsets.size(0) - 1, windows = positions.size(0);
        check(windows > 0 && documents % windows == 0, "packed documents: ", documents, " in ", windows,
              " windows; expected the same number in each");
        return documents / windows;
    }
};

/// Returns the documents of a model with prefix: row i of [rows,tokens] is a text whose first prompts[i]
/// tokens are its prompt. Throws Error if a prompt is longer than `tokens`.
Documents prefix_documents(const Context& ctx, std::span<const std::int64_t> prompts, std::int64_t tokens);

}  // namespace gradtile

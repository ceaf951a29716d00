#pragma once
/// Documents that lie one after the other in a batch of token windows, and rows of the token before each
/// token.
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

/// Where each token's predecessor stands. Without tensors it is the token before in the same row, and a row's
/// first token has none.
struct PreviousTokens {
    Tensor place = {};    ///< int32 [B,T]: the predecessor's index in the row, -1 if there is none
    Tensor sibling = {};  ///< int32 [B,T]: the next token with the same predecessor, 0 if there is none

    PreviousTokens() = default;
    /// The predecessor is the nearest earlier token of the row whose position is one less. So a document's
    /// first token has none, and the first tokens of all answers to a shared prompt have the same one. If
    /// `documents` is empty, has no tensors. Throws Error for parts of sequences (Documents::ring).
    PreviousTokens(const Context& ctx, const Documents& documents);
};

/// y[t] = x[predecessor of t], or x[t] if t has none, for x [B,T,H,D] with a contiguous last axis. Returns a
/// new tensor y, contiguous.
Tensor previous_rows(const Context& ctx, const Tensor& x, const PreviousTokens& previous);
/// dx[t] = sum of dy[u] over the tokens u whose predecessor is t, and dy[t] if t has none. Returns a new
/// tensor, contiguous. Sums are in float32 (float64 for float64 values), in the tokens' order.
Tensor previous_rows_backward(const Context& ctx, const Tensor& dy, const PreviousTokens& previous);
/// previous_rows() for one new token of each of R texts: x [1,R,H,D]. The cache holds the row of token t of a
/// text at t + 1, without a table in [slots,N+1,H,D], with one in the blocks of attention::DecodeCache. Text
/// r has positions[r] tokens there, in slot slots[r] (int32 [R], all slots different); its new row is
/// appended. A slot, position or block outside the cache is an Error on the CPU; on a GPU its y is 0 and the
/// cache stays as it is.
Tensor previous_rows_of_step(const Context& ctx, const Tensor& x, const Tensor& cache,
                             const Tensor& positions, const Tensor& slots, const Tensor& table = {});

}  // namespace gradtile

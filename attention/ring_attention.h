#pragma once
/// Ring attention (Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"):
/// attention over sequences that several processes share. A process holds the queries, keys and values of its
/// tokens. Keys and values travel from process to process while the attention operator computes with those
/// that are present, and merge() combines the results.
///
/// Causal sequences are divided in zigzag order: of 2N equal chunks, rank r of N holds chunks r and 2N - 1 -
/// r, one after the other (Zhu 2024, "ring-flash-attention"). Every process then computes as many pairs of a
/// query and a key, and no call of the operator has a mask but the causal call with the process's own keys.
#include <array>

#include <gradtile/attention/attention.h>

namespace gradtile::attention {

/// The processes that share sequences, in a circle: rank r sends to rank r + 1, and the last one to rank 0.
/// All of them call the same functions in the same order.
class Ring {
  public:
    virtual ~Ring() = default;
    int rank() const { return rank_; }
    int size() const { return size_; }

    /// Starts to send `sent` to the next process, and to receive the previous process's into `received`. Both
    /// are contiguous, with the same dtype and number of elements in every process. The transfer runs beside
    /// the work that follows on ctx. Until finish_shifts() returns, `sent` must not change, `received` must
    /// not be used, and the memory of both must not be freed. Several shifts may be under way.
    void start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const;
    /// Work on ctx after this call sees the `received` of all shifts that were started.
    void finish_shifts(const Context& ctx) const;

  protected:
    /// Throws Error unless 0 <= rank < size.
    Ring(int rank, int size);

  private:
    virtual void do_start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const = 0;
    virtual void do_finish_shifts(const Context& ctx) const = 0;
    int rank_, size_;
};

/// Where the two chunks of rank `rank` begin in a sequence. A chunk has tokens / (2 * ranks) tokens. Throws
/// Error unless `tokens` is a multiple of 2 * ranks.
std::array<std::int64_t, 2> zigzag_chunks(std::int64_t tokens, int rank, int ranks);

/// The row ranges (Options::row_ranges) for a key that rows [begin, end) of a sequence see. They count the
/// rows of rank `rank`, and there is one for each of its two chunks.
std::array<std::int32_t, 4> zigzag_row_ranges(std::int64_t begin, std::int64_t end, std::int64_t tokens,
                                              int rank, int ranks);

/// Computes O [B,S,Hq,Dv] of this process's queries q [B,S,Hq,Dqk] over all processes' keys k [B,S,Hkv,Dqk]
/// and values v [B,S,Hkv,Dv]. All processes call it with equal shapes, dtypes and options, and with
/// options.causal in zigzag order, with S even. The algorithm is flash2, with the options scale, causal,
/// top_left, softcap, sink, deterministic and kernels; throws Error naming another option that is set.
/// saved.o and saved.lse are the results over all keys, without a remainder.
///
/// Instead of causal, options.row_ranges may be the mask, with the ranges of every rank's keys in rank order:
/// int32 [N B or N, Hq or 1, S, 4], in which rows are those of this process. The processes then may have
/// different work.
///
/// Each process sends the bytes of its k and v N - 1 times. O is merged in float32 (float64 for float64), so
/// a 16-bit O has the errors of one rounding in each part and one of the sum.
Tensor ring_forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Options& options, const Ring& ring, Saved& saved);

/// Writes the gradients of this process's q, k, v [B,S,..] and, if `into` has a tensor for it, of the sink
/// (the part of this process's queries) from d_o [B,S,Hq,Dv]. `options` and `saved` are those of
/// ring_forward(). Keys and values travel again, and the gradients of k and v travel with them, as sums in
/// float32 (float64 for float64), until they are back. The order of the sums is fixed.
///
/// Each process sends the bytes of its k and v N - 1 times, and as many elements in float32 or float64 N
/// times.
void ring_backward(const Context& ctx, const Tensor& d_o, const Options& options, const Ring& ring,
                   const Saved& saved, const Gradients& into);

}  // namespace gradtile::attention

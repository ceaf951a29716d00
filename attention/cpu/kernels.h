#pragma once
/// INTERNAL. The interface between the flash driver (attention/cpu/flash.cpp) and the block kernels for one
/// dtype and instruction set. The driver packs tensors whose last stride is not 1, divides the work into
/// tasks, runs them on threads, and computes D = rowsum(dO * O). A kernel computes one task on one thread.
/// The kernel contains the loops over the other operand's blocks, so that it can choose its own tiles.
///
/// Kernel files are compiled per instruction set. They must not include headers that emit inline functions,
/// and they keep everything in anonymous namespaces.
#include <cstddef>
#include <cstdint>

#include <gradtile/attention/cpu/row_ranges.h>
#include <gradtile/attention/internal/strided_rows.h>
#include <gradtile/attention/mask.h>
#include <gradtile/attention/score_rule.h>
#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {

template <class A>
struct BiasGradientRows;

/// Sizes, scale and mask for one call, shared by all its tasks.
struct Geometry {
    std::int64_t d_qk = 0;
    std::int64_t d_v = 0;
    double scale = 1.0;
    Mask mask;  ///< mask.queries = Sq, mask.keys = Sk

    /// |scale| log2(e): turns products into base-2 exponents. Every kernel uses this number, because the
    /// backward pass must recompute the forward pass's scores.
    GRADTILE_ATTENTION_INLINE float scale_log2() const {
        return static_cast<float>((scale < 0 ? -scale : scale) * 1.4426950408889634);
    }
};

/// One row's softmax over some keys, in natural units: the largest score and the sum of exp(score - maximum).
/// The two are stored separately, because if -1e30 masks all keys, the LSE would have no digits left for
/// ln(sum).
struct RowSoftmax {
    double maximum, sum;
};

/// The LSE for one head's rows, and the remainders: what each LSE lost when it was rounded.
template <class A>
struct RowLse {
    A *lse = nullptr, *remainder = nullptr;  ///< [Sq] each, natural log

    /// Stores unit * maximum + ln(sum) for n rows from row `first` on. A zero sum means that a row sees no
    /// key. The loop has no branches, so that the compiler vectorises it.
    template <class Number>
    GRADTILE_ATTENTION_INLINE void store(std::int64_t first, std::int64_t n, double unit,
                                         const Number* maximum, const Number* sum) const {
        for (std::int64_t i = 0; i < n; ++i) {
            const double m = unit * static_cast<double>(maximum[i]);
            const double log_sum = static_cast<double>(vector_math::log(sum[i]));
            const A rounded = static_cast<A>(sum[i] == 0 ? -__builtin_inf() : m + log_sum);
            // The larger number minus the rounded sum is exact or nearly so (Dekker's FastTwoSum).
            const bool m_is_larger = __builtin_fabs(m) >= __builtin_fabs(log_sum);
            const double lost =
                ((m_is_larger ? m : log_sum) - static_cast<double>(rounded)) + (m_is_larger ? log_sum : m);
            lse[first + i] = rounded;
            remainder[first + i] = lost - lost == 0 ? static_cast<A>(lost) : A(0);  // 0 if it is not finite
        }
    }
};

/// One query row block of one (batch, query head), with all keys or one key part. The kernel writes O and the
/// LSE for every row in the block: O = 0 and LSE = -inf for a row that sees no key. NaN or inf in an input
/// may spread to all rows in the block. The mask itself never causes NaN.
template <class T>
struct ForwardTask {
    const Geometry* geometry = nullptr;
    StridedRows<const T> q;  ///< the whole head's rows: row i is query i
    StridedRows<const T> k;
    StridedRows<const T> v;
    StridedRows<T> o;
    RowLse<Accumulator<T>> lse;  ///< [Sq] for this head
    IndexRange rows{};
    /// The head's rule; null if the scores are the scaled products and no rule changes them.
    const ScoreRule<Accumulator<T>>* rule = nullptr;
    KeyRanges ranges{};  ///< the head's row ranges

    /// One key part, see key_parts.h. The kernel ignores keys outside the part, and writes O and the row's
    /// softmax to part_o and part_softmax instead of o and lse. The part begins at a multiple of 256 keys.
    IndexRange part{0, INT64_MAX};
    StridedRows<Accumulator<T>> part_o{};
    RowSoftmax* part_softmax = nullptr;  ///< [Sq]; null if the task has all keys

    /// Returns the keys that the kernel must process.
    GRADTILE_ATTENTION_INLINE IndexRange keys() const {
        const IndexRange seen = geometry->mask.visible_keys(rows);
        return {seen.begin > part.begin ? seen.begin : part.begin, seen.end < part.end ? seen.end : part.end};
    }
    GRADTILE_ATTENTION_INLINE Coverage coverage(IndexRange block_rows, IndexRange block_keys) const {
        return coverage_of(geometry->mask, ranges, block_rows, block_keys);
    }
};

/// Few rows: all queries of some query heads that share a K/V head, with one key part. Row r is query r % Sq
/// of head r / Sq.
template <class T>
struct FewQueriesTask {
    const Geometry* geometry = nullptr;
    std::int64_t heads = 1;
    StridedRows<const T> q;  ///< the first head; head h begins h * q_head_stride later
    std::int64_t q_head_stride = 0;
    StridedRows<const T> k;
    StridedRows<const T> v;
    IndexRange part{};
    /// [heads]; null if no rule changes the scaled products. The rules have no sink.
    const ScoreRule<float>* rules = nullptr;
    const KeyRanges* ranges = nullptr;  ///< [heads]; null: the call has no row ranges
    float* o = nullptr;                 ///< [rows, Dv]: O over the part's keys, 0 for a row that sees none
    RowSoftmax* softmax = nullptr;      ///< [rows]: softmax over the part's keys
};

/// Kernels for few queries, for one dtype and instruction set. Scratch memory is as for FlashKernels.
template <class T>
struct FewQueriesKernels {
    const char* name;
    std::size_t (*scratch_bytes)(const Geometry&, std::int64_t rows);
    void (*forward)(const FewQueriesTask<T>&, std::byte* scratch);
    /// Writes q k, without the scale, to `out` for every row and every key in the part, summed in the forward
    /// pass's order. Zeros pad each row of `out` to a multiple of 64 numbers. Ignores the task's outputs.
    void (*multiply)(const FewQueriesTask<T>&, const StridedRows<float>& out, std::byte* scratch);
};

/// Makes K/V blocks add to dQ in block order, whichever threads compute them. There is one counter for each
/// query head in the group and each block of Blocks::backward_rows query rows. The counter holds the index of
/// the K/V block whose turn it is; it starts at the first K/V block that the rows see.
struct DqTurns {
    std::int32_t* counters = nullptr;  ///< [group, blocks_per_head]
    std::int64_t blocks_per_head = 0;
};
/// Waits until K/V block `key_block` may write dQ for row block `row_block` in head `head` of the group.
void wait_for_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block,
                      std::int64_t key_block);
/// Gives the turn for row block `row_block` to K/V block key_block + 1.
void pass_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block, std::int64_t key_block);

/// One key block of one (batch, K/V head), with every query head in the group and every row that sees a key
/// in the block. The kernel overwrites d_k and d_v for every key in the block with sums over the group (0 if
/// no row sees the key).
///
/// For each row block (Blocks::backward_rows rows) that sees a key in the block by the mask, the kernel calls
/// skip_rows() if the row ranges hide all keys from the rows. Else it calls wait_for_dq_turn once, writes its
/// dQ part to d_q (overwriting if overwrites_dq(), else adding), and calls pass_dq_turn once. Heads may come
/// in any order; a head's row blocks must come in increasing order. The driver sets dQ = 0 for rows that see
/// no key.
template <class T>
struct BackwardTask {
    const Geometry* geometry = nullptr;
    StridedRows<const T> k;  ///< the whole head's rows
    StridedRows<const T> v;
    StridedRows<T> d_k;
    StridedRows<T> d_v;
    IndexRange keys{};
    std::int64_t key_block = 0;  ///< keys.begin / Blocks::backward_keys

    std::int64_t group = 1;  ///< how many query heads share this K/V head
    StridedRows<const T> q;  ///< the group's first query head; head g begins g * q_head_stride later
    StridedRows<const T> d_o;
    StridedRows<Accumulator<T>> d_q;
    std::int64_t q_head_stride = 0, d_o_head_stride = 0, d_q_head_stride = 0;
    /// [group, Sq] each: P = exp((S - lse) - lse_remainder). In base 2 if the scores are; see
    /// FlashKernels::scores_in_base_2. lse is +inf for rows that see no key, which gives P = 0 without a
    /// branch.
    const Accumulator<T>*lse = nullptr, *lse_remainder = nullptr;
    const Accumulator<T>* delta = nullptr;  ///< [group, Sq]: D = rowsum(dO * O) - dLSE
    /// q k, without the scale, for the rows [group, Sq] and the block's keys, if the forward pass summed
    /// these products in another order than the kernel does: with scores near 1e7, products in another order
    /// would make P wrong by a factor of e. Rows are padded as in FewQueriesKernels::multiply. Null: the
    /// kernel computes the products.
    StridedRows<const float> products{};
    DqTurns turns;
    /// [group]; null if the scores are the scaled products and no rule changes them.
    const ScoreRule<Accumulator<T>>* rules = nullptr;
    const KeyRanges* ranges = nullptr;  ///< [group]; null: the call has no row ranges
    const std::array<BiasGradientRows<Accumulator<T>>, max_biases>* bias_gradients = nullptr;  ///< [group]

    /// Whether this K/V block is the first that adds to the rows' dQ, and so overwrites it.
    GRADTILE_ATTENTION_INLINE bool overwrites_dq(IndexRange rows) const {
        return geometry->mask.visible_keys(rows).begin >= keys.begin;
    }
    GRADTILE_ATTENTION_INLINE KeyRanges ranges_of(std::int64_t head) const {
        return ranges == nullptr ? KeyRanges{} : ranges[head];
    }
    GRADTILE_ATTENTION_INLINE Coverage coverage(std::int64_t head, IndexRange block_rows,
                                                IndexRange block_keys) const {
        return coverage_of(geometry->mask, ranges_of(head), block_rows, block_keys);
    }
    /// Replaces a row block that the row ranges hide from all of the block's keys: takes its turn, and adds
    /// nothing to dQ.
    GRADTILE_ATTENTION_INLINE void skip_rows(std::int64_t head, std::int64_t block, IndexRange rows) const {
        wait_for_dq_turn(turns, head, block, key_block);
        if (overwrites_dq(rows))
            for (std::int64_t i = rows.begin; i < rows.end; ++i)
                for (std::int64_t c = 0; c < geometry->d_qk; ++c) d_q.row(i)[head * d_q_head_stride + c] = 0;
        pass_dq_turn(turns, head, block, key_block);
    }
};

/// Rows and keys per task. They must not depend on the thread count, because they determine the order of
/// additions.
struct Blocks {
    std::int64_t forward_rows = 64;
    std::int64_t backward_keys = 64;
    std::int64_t backward_rows = 64;  ///< rows per addition to dQ; the same for all lengths
};

/// The kernels for one dtype and instruction set. Scratch memory is aligned to 64 bytes, private to the
/// running task, and uninitialised. The scratch size never falls when a length grows, so the size for a whole
/// tensor suffices for every sequence packed in the tensor.
template <class T>
struct FlashKernels {
    const char* name;
    /// Whether scores that no rule changes are in base 2: the scale includes log2(e).
    bool scores_in_base_2;
    Blocks (*blocks)(const Geometry&);
    std::size_t (*forward_scratch_bytes)(const Geometry&);
    std::size_t (*backward_scratch_bytes)(const Geometry&);
    void (*forward)(const ForwardTask<T>&, std::byte* scratch);
    void (*backward)(const BackwardTask<T>&, std::byte* scratch);
};

/// Portable kernels: for float64 and float16, and for other dtypes on machines without special kernels.
template <class T>
const FlashKernels<T>& generic_kernels();

}  // namespace gradtile::attention::cpu

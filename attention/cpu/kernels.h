#pragma once
/// INTERNAL. The contract between the flash driver (attention/cpu/flash.cpp) and the block kernels of one
/// dtype and instruction set. The driver checks, packs tensors whose last stride is not 1, cuts tasks, runs
/// them on threads, and computes D = rowsum(dO * O); a kernel does one task on one thread, all loops over the
/// other side's blocks included, so that it chooses its own tiles.
///
/// Kernel files are compiled per instruction set: include nothing there that emits inline functions, keep
/// everything in an ISA-named inline or anonymous namespace.
#include <cstddef>
#include <cstdint>

#include <gradtile/attention/internal/strided_rows.h>
#include <gradtile/attention/mask.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {

/// What all tasks of one call share.
struct Geometry {
    std::int64_t d_qk = 0;
    std::int64_t d_v = 0;
    double scale = 1.0;
    Mask mask;  ///< mask.queries = Sq, mask.keys = Sk
};

/// One block of query rows of one (batch, query head). Writes o and lse for every row of the block: a row
/// that sees nothing gets o = 0, lse = -inf. Inputs with NaN or inf may give NaN, masked keys never do.
template <class T>
struct ForwardTask {
    const Geometry* geometry = nullptr;
    StridedRows<const T> q;  ///< of the whole head: row i is query i
    StridedRows<const T> k;
    StridedRows<const T> v;
    StridedRows<T> o;
    Accumulator<T>* lse = nullptr;  ///< [Sq] of this head, natural log
    IndexRange rows{};
};

/// Keeps the additions into dQ in the order of the K/V blocks, whatever thread computes them: one counter per
/// (query head of the group, block of Blocks::backward_rows query rows), which starts at the row block's
/// first visible K/V block and is passed on from block to block.
struct DqTurns {
    std::int32_t* counters = nullptr;  ///< [group, blocks_per_head]
    std::int64_t blocks_per_head = 0;
};
/// Returns once K/V block `key_block` may write dQ of row block `row_block` of the group's head `head`.
void wait_for_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block,
                      std::int64_t key_block);
/// Hands dQ of that row block on to K/V block key_block + 1.
void pass_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block, std::int64_t key_block);

/// One block of keys of one (batch, K/V head), against every query head of its group and every row that sees
/// it. Overwrites d_k and d_v for every key of the block, summed over the group (0 where no row sees the
/// key). For every row block of Blocks::backward_rows that sees a key of the block, exactly once and in any
/// order of heads but increasing rows: wait_for_dq_turn, then d_q = or += the block's part (see starts_dq),
/// then pass_dq_turn. d_q needs no clearing; rows that see no key at all are the driver's.
template <class T>
struct BackwardTask {
    const Geometry* geometry = nullptr;
    StridedRows<const T> k;  ///< of the whole head
    StridedRows<const T> v;
    StridedRows<T> d_k;
    StridedRows<T> d_v;
    IndexRange keys{};
    std::int64_t key_block = 0;  ///< keys.begin / Blocks::backward_keys

    std::int64_t group = 1;  ///< query heads that share this K/V head
    StridedRows<const T> q;  ///< of the group's first query head; head g lies q_head_stride * g further
    StridedRows<const T> d_o;
    StridedRows<Accumulator<T>> d_q;
    std::int64_t q_head_stride = 0, d_o_head_stride = 0, d_q_head_stride = 0;
    const Accumulator<T>* lse = nullptr;    ///< [group, Sq] natural log; +inf for rows that see nothing, so
                                            ///< that exp(s - lse) = 0 there without a test
    const Accumulator<T>* delta = nullptr;  ///< [group, Sq]: D = rowsum(dO * O)
    DqTurns turns;

    /// Whether no earlier K/V block adds to dQ of these rows, so that this one overwrites it.
    GRADTILE_ATTENTION_INLINE bool starts_dq(IndexRange rows) const {
        return geometry->mask.visible_keys(rows).begin >= keys.begin;
    }
};

/// Rows and keys a task covers. Must not depend on the number of threads.
struct Blocks {
    std::int64_t forward_rows = 64;
    std::int64_t backward_keys = 64;
    std::int64_t backward_rows = 64;  ///< step in which backward adds to dQ
};

/// The kernels of one dtype for one instruction set. Scratch is 64-byte aligned, private to the running task,
/// uninitialised.
template <class T>
struct FlashKernels {
    const char* name;
    Blocks (*blocks)(const Geometry&);
    std::size_t (*forward_scratch_bytes)(const Geometry&);
    std::size_t (*backward_scratch_bytes)(const Geometry&);
    void (*forward)(const ForwardTask<T>&, std::byte* scratch);
    void (*backward)(const BackwardTask<T>&, std::byte* scratch);
};

/// Portable kernels; float64, float16, and any dtype on a machine without its own.
template <class T>
const FlashKernels<T>& generic_kernels();

}  // namespace gradtile::attention::cpu

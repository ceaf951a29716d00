#pragma once
/// INTERNAL. The functions that each device implements for attention.h. The caller has checked the arguments
/// and resolved the options. The functions are also called in dry runs: they allocate scratch memory from ctx
/// and then return if ctx.is_planning().
#include <limits>
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>
#include <gradtile/attention/score_rule.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// A call's packed sequences. The tensors in a packed call have batch 1, and a sequence is a row range.
struct PackedSequences {
    Tensor q_offsets, k_offsets;  ///< int32 [count + 1], contiguous; undefined: the call is not packed
    std::int64_t count = 0;
    bool top_left = false;  ///< the mask's offset is 0, else the sequence's keys minus its rows
    /// The most rows and keys of a sequence for which the biases have numbers.
    std::int64_t max_queries = std::numeric_limits<std::int32_t>::max(), max_keys = max_queries;

    explicit operator bool() const { return q_offsets.defined(); }
};

/// Options with their defaults filled in for a call's shapes.
struct ResolvedOptions {
    Algorithm algorithm = Algorithm::flash2;
    double scale = 1.0;
    /// The mask for the whole tensor. For packed sequences, kernels replace its lengths and its offset by
    /// each sequence's own.
    Mask mask;
    RowRanges row_ranges;
    ScoreOptions scores;
    PackedSequences packed;
    bool deterministic = false;  ///< for CUDA only: the CPU's results are always deterministic
    KernelChoice kernels = {};   ///< for CUDA only
    /// int32 [2] on a GPU, 0 at first; undefined without biases and row ranges. Kernels set [0] if results
    /// are not finite, see repair_forward, and [1] if an LSE is large, see device::large_lse.
    Tensor flags = {};
};

/// Checks the options for q [B, Sq, Hq, Dqk] and k [B, Sk, Hkv, Dqk], and fills in their defaults.
ResolvedOptions resolve(const Options& options, const PackedSequences& packed, const Tensor& q,
                        const Tensor& k);

/// How many blocks of 128 rows x 128 keys have a visible pair, by the mask and the row ranges. Packed
/// sequences have blocks of their own.
struct VisibleBlocks {
    std::int64_t visible = 0, all = 0;

    double share() const { return all == 0 ? 0 : static_cast<double>(visible) / static_cast<double>(all); }
};
/// Counts the blocks of a call with q [B, Sq, Hq, Dqk], in all heads. The ranges and offsets must be in host
/// memory.
VisibleBlocks visible_blocks(const ResolvedOptions& options, const Tensor& q);

/// What an option changes.
enum class OptionKind : std::uint8_t {
    algorithm,
    determinism,
    scale,
    window,     ///< the mask's window sides
    alignment,  ///< the mask's offset
    ranges,     ///< RowRanges
    formula,    ///< ScoreFormula
    pairs,      ///< a number for each (row, key) pair
    sink,
    dropout,
    packing,
    kernels
};
/// One Options field, and whether a call sets the field to a value that has an effect.
struct OptionState {
    std::string_view name;
    OptionKind kind;
    bool is_set;
};
/// Returns every field's state. An operator that implements only some option kinds refuses the others by this
/// list, so that it also refuses an option that is added later.
std::vector<OptionState> option_states(const Options& options);

/// What computes a call, as far as the supported options depend on it.
enum class Method : std::uint8_t {
    flash2_on_gpu,
    dense_and_packed,  ///< flash2 on the CPU, and naive
    dense_only,        ///< memory_efficient and flash1
    decode             ///< decode.h
};
/// The table of supported options: whether a method computes options of a kind.
bool computes(Method method, OptionKind kind);
/// Throws Error "OPERATOR: OPTION is set; expected ..." for the first option that the method does not
/// compute.
void refuse_unsupported(const char* op, Method method, const Options& options);

/// Gradients with respect to the forward pass's outputs.
struct OutputGradients {
    Tensor o;
    Tensor lse;  ///< undefined if dLSE is 0
};

/// Writes saved.o and saved.lse, and also saved.lse_remainder, row_max and row_sum where they are defined.
/// The other tensors in `saved` are inputs.
using ForwardFunction = void(const Context& ctx, const ResolvedOptions& options, const Saved& saved);
/// Writes the gradients that `into` has tensors for. lse, lse_remainder, row_max and row_sum in `saved` are
/// contiguous; lse_remainder may be undefined, which means 0.
using BackwardFunction = void(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                              const OutputGradients& d_out, const Gradients& into);

/// Sets to 0 the rows of x [B, S, H, D] that the mask excludes: queries that see no key, or keys that no row
/// sees.
enum class RowKind : std::uint8_t { query, key };
using ClearFunction = void(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& x);

/// Returns one line of text that describes how a forward function computes a call.
using ExplainFunction = std::string(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                    const Tensor& k, const Tensor& v);

// Each line declares functions of one of the types above.
namespace cpu {
ClearFunction clear_unseen;
ExplainFunction explain_flash_forward;
ForwardFunction naive_forward, flash_forward, memory_efficient_forward, flash1_forward;
BackwardFunction naive_backward, flash_backward, memory_efficient_backward, flash1_backward;
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(clear_unseen);
/// Make the pass's plan and run it, for every algorithm.
GRADTILE_CUDA_FUNCTION(ForwardFunction, forward);
GRADTILE_CUDA_FUNCTION(BackwardFunction, backward);
/// Computes a call with biases or row ranges again, pair by pair, if options.flags says that its results are
/// not finite. A key that an -inf bias or its row ranges hide from every row in a tile, or a row whose keys
/// are all hidden, then adds nothing even if it holds NaN.
GRADTILE_CUDA_FUNCTION(ForwardFunction, repair_forward);
GRADTILE_CUDA_FUNCTION(BackwardFunction, repair_backward);
}  // namespace cuda

}  // namespace gradtile::attention

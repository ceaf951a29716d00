#pragma once
/// INTERNAL. The functions that each device implements for attention.h. The caller has checked the arguments
/// and resolved the options. The functions are also called in dry runs: they allocate scratch memory from ctx
/// and then return if ctx.is_planning().
#include <vector>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/mask.h>
#include <gradtile/attention/score_rule.h>

namespace gradtile::attention {

/// The packed sequences of a call. The tensors of a packed call have batch 1, and a sequence is a range of
/// their rows.
struct PackedSequences {
    Tensor q_offsets, k_offsets;  ///< int32 [count + 1], contiguous; undefined: the call is not packed
    std::int64_t count = 0;
    bool top_left = false;  ///< the mask's offset is 0, else the keys minus the rows of the sequence

    explicit operator bool() const { return q_offsets.defined(); }
};

/// Options with their defaults filled in for the shapes of a call.
struct ResolvedOptions {
    double scale = 1.0;
    /// The mask of the whole tensor. For packed sequences, kernels replace its lengths and its offset by
    /// those of each sequence.
    Mask mask;
    ScoreOptions scores;
    PackedSequences packed;
    bool deterministic = false;  ///< for CUDA only: the CPU's results are always deterministic
    /// int32 [2] on a GPU, 0 at first; undefined without biases. Kernels set [0] if results are not finite,
    /// see repair_forward, and [1] if an LSE is large, see device::large_lse.
    Tensor flags = {};
};

/// Checks the options for q [B, Sq, Hq, Dqk] and k [B, Sk, Hkv, Dqk], and fills in their defaults.
ResolvedOptions resolve(const Options& options, const PackedSequences& packed, const Tensor& q,
                        const Tensor& k);

/// What an option changes.
enum class OptionKind : std::uint8_t {
    algorithm,
    determinism,
    scale,
    window,     ///< the sides of the mask's window
    alignment,  ///< the mask's offset
    formula,    ///< ScoreFormula
    pairs,      ///< a number for each pair of a row and a key
    sink,
    dropout,
    packing
};
/// One field of Options, and whether a call sets the field to a value that has an effect.
struct OptionState {
    std::string_view name;
    OptionKind kind;
    bool is_set;
};
/// Returns the state of every field. An operator that implements only some kinds of options refuses the
/// others by this list, so that it also refuses an option that is added later.
std::vector<OptionState> option_states(const Options& options);

/// Gradients with respect to the outputs of the forward pass.
struct OutputGradients {
    Tensor o;
    Tensor lse;  ///< undefined if dLSE is 0
};

/// Writes saved.o and saved.lse, and of saved.lse_remainder, row_max and row_sum those that are defined. The
/// other tensors of `saved` are inputs.
using ForwardFunction = void(const Context& ctx, const ResolvedOptions& options, const Saved& saved);
/// Writes the gradients that `into` has tensors for. lse, lse_remainder, row_max and row_sum of `saved` are
/// contiguous; lse_remainder may be undefined, which means 0.
using BackwardFunction = void(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                              const OutputGradients& d_out, const Gradients& into);

/// Sets the rows of x [B, S, H, D] to 0 that take no part by the mask: queries that see no key, or keys that
/// no row sees.
enum class RowKind : std::uint8_t { query, key };
using ClearFunction = void(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& x);

/// Returns a line of text that describes how a forward function computes a call.
using ExplainFunction = std::string(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                    const Tensor& k, const Tensor& v);

// Each of these lines declares a function of one of the types above.
namespace cpu {
ClearFunction clear_unseen;
ExplainFunction explain_flash_forward;
ForwardFunction naive_forward, flash_forward, memory_efficient_forward, flash1_forward;
BackwardFunction naive_backward, flash_backward, memory_efficient_backward, flash1_backward;
}  // namespace cpu
namespace cuda {
ClearFunction clear_unseen;
ExplainFunction explain_flash_forward, explain_memory_efficient_forward, explain_flash1_forward;
ForwardFunction naive_forward, flash_forward, memory_efficient_forward, flash1_forward;
BackwardFunction naive_backward, flash_backward, memory_efficient_backward, flash1_backward;
/// Computes a call with biases again, pair by pair, if options.flags says that its results are not finite. A
/// key that a bias of -inf hides from every row of a tile, or a row whose keys are all hidden, then adds
/// nothing even if it holds NaN.
ForwardFunction repair_forward;
BackwardFunction repair_backward;
}  // namespace cuda

}  // namespace gradtile::attention

#pragma once
/// INTERNAL. Rows and keys that -inf biases and row ranges exclude from a call, on the CPU. On a GPU
/// repair_forward and repair_backward handle them.
#include <initializer_list>

#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cpu {

/// Whether a call has biases or row ranges, and at least one tensor holds a NaN or an infinity. Kernels
/// multiply whole tiles, so such a number in a key that no row sees reaches O and dQ by 0 * NaN, and such a
/// number in a q or d_o row that sees no key reaches dK and dV. Keys are not examined: for few queries,
/// reading them again would take as long as the call.
bool may_spread(const Context& ctx, const ResolvedOptions& options,
                std::initializer_list<Tensor> row_tensors);

/// The inputs for one pass.
struct Inputs {
    Saved saved;
    OutputGradients d_out;
};

/// Returns the inputs with copies of q, k, v and d_o in which the rows that see no key, and the keys that no
/// row sees, are 0.
Inputs without_hidden(const Context& ctx, const ResolvedOptions& options, const Inputs& inputs);

}  // namespace gradtile::attention::cpu

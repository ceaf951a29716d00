#pragma once
/// INTERNAL. Rows and keys that take no part in a call because of biases of -inf, on the CPU. On a GPU
/// repair_forward and repair_backward handle them.
#include <initializer_list>

#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention::cpu {

/// Whether a call has biases and one of the tensors holds a NaN or an infinity. Such a number in a row that
/// sees no key, or in a key that no row sees, reaches O and dQ by 0 * NaN if it is in a key, and dK and dV if
/// it is in a row of q or d_o, because kernels multiply whole tiles. Keys are not examined: for few queries,
/// to read them again would take as long as the call.
bool may_spread(const Context& ctx, const ResolvedOptions& options,
                std::initializer_list<Tensor> row_tensors);

/// The inputs of a pass.
struct Inputs {
    Saved saved;
    OutputGradients d_out;
};

/// Returns the inputs with copies of q, k, v and d_o in which the rows that see no key, and the keys that no
/// row sees, are 0.
Inputs without_hidden(const Context& ctx, const ResolvedOptions& options, const Inputs& inputs);

}  // namespace gradtile::attention::cpu

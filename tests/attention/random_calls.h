#pragma once
/// Random attention calls: shapes, dtypes, memory layouts and options that a seed determines.
#include <array>
#include <cstdint>
#include <iosfwd>

#include "layouts.h"
#include "packed_problems.h"

namespace gradtile::attention::test {

struct RandomCall {
    std::uint64_t seed = 0;
    DType dtype = DType::f32;
    Problem problem = {};  ///< for a dense call
    bool is_packed = false;
    PackedProblem packed = {};  ///< for a packed call
    bool deterministic = false;
    bool shares_keys = false;     ///< k and v have stride 0 along the batch
    bool typed_biases = false;    ///< biases have q's dtype, else float32
    bool expands_biases = false;  ///< biases have stride 0 where they are broadcast, else length-1 axes
    bool has_option_gradients = true;
    Layout bias_layout = Layout::contiguous;
    std::array<Layout, 8> layouts = {};  ///< for q, k, v, o, dO, dQ, dK, dV
    int ring_heads = 0;                  ///< heads per set, and extra ring slots; 0: the policy's

    /// How many multiplications a forward pass takes.
    double work() const;
};
std::ostream& operator<<(std::ostream& out, const RandomCall& call);

/// Draws a call with at most `max_work` multiplications in a forward pass.
RandomCall random_call(std::uint64_t seed, double max_work);
/// Draws a dense 16-bit call with long sequences and many heads, without dropout, whose S has at most
/// `max_scores` elements.
RandomCall large_random_call(std::uint64_t seed, std::int64_t max_scores);

/// A call's inputs on the host, contiguous.
struct RandomInputs {
    Inputs dense;
    PackedInputs packed;
};
RandomInputs inputs_of(const Context& cpu, const RandomCall& call, DType dtype);

/// Runs a call on tensors in its layouts, and expects that nothing around its outputs was written. Gradients
/// that the call does not compute are taken from `others`.
Result run(const Context& ctx, const RandomCall& call, const RandomInputs& in, Algorithm algorithm,
           const Result& others);

}  // namespace gradtile::attention::test

#pragma once
/// Packed problems, and their expected results: a dense call's results for each sequence.
#include "attention_testing.h"

namespace gradtile::attention::test {

/// The shapes and options of `each` apply to every sequence; its lengths and batch are unused. Its biases
/// have the shapes of packed calls.
struct PackedProblem {
    Problem each;
    std::vector<std::int32_t> queries, keys;        ///< each sequence's lengths
    std::int64_t unused_rows = 0, unused_keys = 0;  ///< rows and keys after the last sequence

    std::int64_t rows() const;
    std::int64_t key_count() const;
    /// The dense problem for sequence s.
    Problem sequence(std::size_t s) const;
};
std::ostream& operator<<(std::ostream& out, const PackedProblem& problem);
/// Replaces the dense biases of score_option_problems() by one bias per key, and one that all sequences
/// share.
void use_packed_biases(PackedProblem& problem);

/// Tensors without batch axis, [rows, H, D]; d_lse is [H, rows].
struct PackedInputs {
    Inputs in;
    Tensor cumulative_q, cumulative_k;

    PackedInputs to(const Context& ctx, DType dtype) const;
    /// Copies to a device.
    PackedInputs on(const Context& ctx) const;
};
PackedInputs random_inputs(const Context& ctx, const PackedProblem& problem, DType dtype);
/// The inputs for sequence s, as views with batch 1.
Inputs inputs_of_sequence(const PackedProblem& problem, const PackedInputs& in, std::size_t s);

/// Runs all sequences in one packed call.
Result run(const Context& ctx, const PackedInputs& in, Options options);
/// Runs each sequence in a dense call, and puts the results where the packed call has them: 0, and -inf for
/// the LSE, where there is no sequence.
Result run_each(const Context& ctx, const PackedProblem& problem, const PackedInputs& in,
                Algorithm algorithm);
Reference float64_reference(const Context& ctx, const PackedProblem& problem, const PackedInputs& in,
                            const Roundoff& roundoff);

/// Every attention option that packed sequences allow, alone and combined, at lengths that include 0.
std::vector<PackedProblem> packed_problems();

}  // namespace gradtile::attention::test

#pragma once
/// Measures an attention computation's errors against a float64 reference, and derives the bounds that the
/// errors must keep (docs/numerics.md, "How accurate"). The reference evaluates the formulas pair by pair
/// (row, key) and shares no code with the operator, not even the mask. Used by the tests and `gradtile
/// gradcheck`.
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/attention/attention.h>

namespace gradtile::attention::accuracy {

/// Shapes and options for one attention call.
struct Problem {
    std::int64_t queries = 1, keys = 1;
    std::int64_t d_qk = 8, d_v = 8;
    bool causal = false;
    std::int64_t batch = 1, heads = 1, key_heads = 1;
    Window window = {};
    bool top_left = false;
    std::optional<double> scale = {};
    double softcap = 0;
    bool alibi = false, sink = false;
    std::array<Shape, max_biases> biases = {};  ///< bias shapes; rank 0: no bias
    std::int64_t batch_divisor = 1;
    Shape row_ranges = {};  ///< the row ranges' batch and heads; rank 0: none
    double dropout_p = 0;
    std::int64_t first_sample = 0;  ///< the first sequence's number for dropout
    bool d_lse = false;             ///< the gradient with respect to the LSE is not 0

    /// Returns the options with undefined tensors; with_tensors() adds the tensors from an Inputs.
    Options options(Algorithm algorithm = Algorithm::flash) const;
    double scale_or_default() const;
};
std::ostream& operator<<(std::ostream& out, const Problem& problem);

struct NamedProblem {
    std::string name;
    Problem problem;
};
/// Returns `base` with each option that changes scores or probabilities, one option per problem, and at the
/// end a problem named all-options with all these options. Tests and `gradtile gradcheck` take their problems
/// from this list.
std::vector<NamedProblem> score_option_problems(const Problem& base);
/// Returns `base` with row ranges, alone and with all score options, for flash and naive only.
std::vector<NamedProblem> row_range_problems(const Problem& base);

struct Inputs {
    Tensor q;    ///< [B, Sq, Hq, Dqk]
    Tensor k;    ///< [B, Sk, Hkv, Dqk]
    Tensor v;    ///< [B, Sk, Hkv, Dv]
    Tensor d_o;  ///< [B, Sq, Hq, Dv]
    // Option tensors; undefined if the problem does not set the option.
    std::array<Tensor, max_biases> biases = {};  ///< float32
    Tensor alibi_slopes = {}, sink = {};         ///< [Hq] float32
    Tensor d_lse = {};                           ///< [B, Hq, Sq]
    Tensor row_ranges = {};                      ///< int32 [B or 1, Hq or 1, Sk, 4]

    Inputs to(const Context& ctx, DType dtype) const;
    /// Returns the options with these inputs' tensors.
    Options with_tensors(Options options) const;
    /// Returns the members that are undefined if the problem does not set their option.
    std::array<Tensor*, max_biases + 4> option_tensors() {
        return {&biases[0], &biases[1], &alibi_slopes, &sink, &d_lse, &row_ranges};
    }
};

/// Copies x's elements to the host; returns none if x is undefined.
std::vector<double> numbers_of(const Context& ctx, const Tensor& x);

/// Random row ranges for `rows` rows, [batch, heads, keys, 4]. Neighbouring keys often have equal ranges, or
/// ranges that grow from key to key. Some are empty, contain all rows, overlap or exceed the rows.
Tensor random_row_ranges(const Context& ctx, const Shape& shape, std::int64_t rows);
/// Standard normal inputs, rounded to dtype.
Inputs random_inputs(const Context& ctx, const Problem& problem, DType dtype);
/// random_inputs with `offset` added to every k and v element. This makes D = rowsum(dO * O) many times
/// larger than the differences dP - D, so that an error in D has a visible effect.
Inputs offset_inputs(const Context& ctx, const Problem& problem, DType dtype, double offset);
/// Inputs with an attention sink: in every row, key `sink` scores about `height` more than the other keys,
/// whose scores are nearly equal. problem.scale must not be 0.
Inputs sink_inputs(const Context& ctx, const Problem& problem, DType dtype, std::int64_t sink, double height);

/// All results from a forward and a backward pass, on the host.
struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v, d_bias_0 = {}, d_bias_1 = {}, d_sink = {};
    bool operator==(const Result&) const = default;
};
Result run(const Context& ctx, const Inputs& in, const Options& options);

/// Rounding errors of one kind of kernel.
struct Roundoff {
    double arithmetic;   ///< relative error per addition or multiplication
    double storage;      ///< relative error when a result is stored
    double factors;      ///< relative error in P and dS as product operands; 0: not rounded
    double exponential;  ///< relative error in 2^x, in addition to 4 arithmetic roundings
    /// A sum over keys or rows is computed in blocks of at least terms_per_block terms. A block has at most
    /// roundings_per_block roundings, and adding it to the other blocks rounds once more.
    std::int64_t roundings_per_block, terms_per_block;
    /// Relative error in a row's maximum and LSE, for calls without biases, from their storage and
    /// conversions; 0 if kernels keep what the roundings lose. Calls with biases have no such error on any
    /// device.
    double row_numbers;

    /// Returns a bound on a sum's error, divided by the sum of its terms' magnitudes. The bound holds even if
    /// all roundings have the same sign.
    double sum_error(std::int64_t terms) const;
};
/// Kernel roundoff for a dtype on a device.
Roundoff roundoff_of(DType dtype, const Device& device);

/// Results in float64, and bounds for kernel errors. Each bound is given element by element.
struct Reference {
    Result value;
    /// The error that flash's own roundings may add to the naive form's error.
    Result floor;
    /// Like floor, but for the root mean square over many elements, and including the roundings of P and dS
    /// before they are multiplied. This floor alone bounds a 16-bit kernel's error.
    Result root_mean_square;
    /// The error if all arithmetic roundings had the same sign: the part of an error that does not average
    /// out over rows.
    Result systematic;
    /// The change in dQ if every D is doubled.
    std::vector<double> d_q_by_d;
};
/// Evaluates attention and its gradients in float64, and derives the error bounds from `roundoff`.
/// Defined in float64_reference.cpp.
Reference float64_reference(const Context& ctx, const Problem& problem, const Inputs& inputs,
                            const Roundoff& roundoff);

/// Factors f in the bounds f * (naive form's error) + floor.
struct Factors {
    double forward;
    double gradients;
};
/// Factors for the largest error. In 16 bits they are 1, since the naive form rounds S, P, dP and dS. In
/// float32 both forms round equally often, in different places, so the factors are larger.
Factors factors_of(DType dtype);
/// Factors for the root mean square error. In 16 bits they are 0, because Reference::root_mean_square covers
/// every rounding.
Factors average_factors_of(DType dtype);

/// The outcome of one comparison, which passes if error <= bound.
struct Finding {
    std::string what;  ///< for example "dQ: largest error"
    double error = 0;
    double bound = 0;
    std::int64_t element = -1;  ///< index into the output; -1 if the error covers all elements
    double value = 0, expected = 0;

    bool ok() const { return error <= bound; }
    double ratio() const { return error == 0 ? 0 : error / bound; }
};
std::ostream& operator<<(std::ostream& out, const Finding& finding);

/// Compares every element: its error must be at most factor * (`naive`'s largest error) + floor. Returns for
/// each output the element with the largest error/bound ratio.
std::vector<Finding> largest_errors(const Result& naive, const Result& result, const Reference& reference,
                                    const Factors& factors);
/// Compares each output's root mean square error. It must be at most factor * (`naive`'s root mean square
/// error) + (root mean square of Reference::root_mean_square).
std::vector<Finding> root_mean_square_errors(const Result& naive, const Result& result,
                                             const Reference& reference, const Factors& factors);
/// Checks that errors are as likely positive as negative. Every row's errors are projected onto the row's
/// expected values. (LSE errors are not projected; dQ errors are also projected onto the effect of an error
/// in D.) The projections must add up to at most 5 standard deviations of a sum with random signs, plus the
/// bound Reference::systematic. The rows must differ from each other, as the rows in random_inputs and
/// offset_inputs do.
std::vector<Finding> biases(const Problem& problem, const Result& result, const Reference& reference);

/// Projects each row's errors, values - expected, onto `direction` and adds the projections; a row has
/// `columns` elements. The sum must be at most 5 standard deviations of a sum with random signs, plus the
/// largest sum that errors within `systematic` can have.
Finding bias(std::string what, const std::vector<double>& values, const std::vector<double>& expected,
             const std::vector<double>& direction, const std::vector<double>& systematic,
             std::int64_t columns);

/// Returns 0 for an empty vector.
double root_mean_square(const std::vector<double>& x);

/// Returns the largest |a - b|. Equal infinities differ by 0; NaN differs from every number by infinity.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gradtile::attention::accuracy

#pragma once
/// How far a computation of attention lies from the definition, and how far it may lie (docs/numerics.md,
/// "How accurate"). The definition is evaluated in float64, one pair (row, key) after the other, and shares
/// no code with the operator, its mask included. For tests and `gradtile gradcheck`.
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/attention/attention.h>

namespace gradtile::attention::accuracy {

/// Shapes and options of one call.
struct Problem {
    std::int64_t queries = 1, keys = 1;
    std::int64_t d_qk = 8, d_v = 8;
    bool causal = false;
    std::int64_t batch = 1, heads = 1, key_heads = 1;
    Window window = {};
    bool top_left = false;
    std::optional<double> scale = {};

    Options options(Algorithm algorithm = Algorithm::flash) const;
    double scale_or_default() const;
};
std::ostream& operator<<(std::ostream& out, const Problem& problem);

struct Inputs {
    Tensor q;    ///< [B, Sq, Hq, Dqk]
    Tensor k;    ///< [B, Sk, Hkv, Dqk]
    Tensor v;    ///< [B, Sk, Hkv, Dv]
    Tensor d_o;  ///< [B, Sq, Hq, Dv]

    Inputs to(const Context& ctx, DType dtype) const;
};

/// Standard normal numbers, rounded to dtype.
Inputs random_inputs(const Context& ctx, const Problem& problem, DType dtype);
/// The same plus `offset` in every element of k and v. D = rowsum(dO * O) is then many times larger than the
/// differences dP - D, so that an error in D shows.
Inputs offset_inputs(const Context& ctx, const Problem& problem, DType dtype, double offset);
/// An attention sink: the score of key `sink` exceeds those of the others, nearly equal ones, by about
/// `height` in every row. problem.scale must not be 0.
Inputs sink_inputs(const Context& ctx, const Problem& problem, DType dtype, std::int64_t sink, double height);
/// One query row whose gradient is `height` times those of the others, which are nearly equal: what the sums
/// over rows, dK and dV, are dominated by.
Inputs heavy_row_inputs(const Context& ctx, const Problem& problem, DType dtype, std::int64_t row,
                        double height);

/// Everything a pass forward and backward gives, on the host.
struct Result {
    std::vector<double> o, lse, d_q, d_k, d_v;
    bool operator==(const Result&) const = default;
};
Result run(const Context& ctx, const Inputs& in, const Options& options);

/// How a computation rounds.
struct Roundoff {
    double arithmetic;   ///< relative, of its sums and products
    double storage;      ///< relative, of the results it stores
    double factors;      ///< relative, of P and dS as factors of products; 0 where they are not rounded
    double exponential;  ///< relative error of 2^x beyond 4 roundings of the arithmetic
    /// A sum over keys or rows is taken in blocks: so many roundings inside of one at most, and one for every
    /// so many terms when blocks are added up.
    std::int64_t roundings_a_block, terms_a_block;

    /// Bound of a sum's error relative to the sum of its terms' magnitudes, for terms of one sign that all
    /// round the same way.
    double of_sum(std::int64_t terms) const;
};
/// Returns the roundoff of the kernels for a dtype on a device.
Roundoff roundoff_of(DType dtype, const Device& device);

struct Reference {
    Result value;
    /// Element by element, what flash's own roundings may add to the error of the textbook's.
    Result floor;
    /// The same with the roundings of P and dS as factors: the whole error of a 16-bit kernel, in root mean
    /// square over many elements.
    Result own;
    /// Bound of the arithmetic's errors when all of them have the same sign: the part of an error that does
    /// not average out over rows.
    Result coherent;
    /// Change of dQ when every D is doubled.
    std::vector<double> d_q_by_d;
};
Reference definition(const Context& ctx, const Problem& problem, const Inputs& inputs,
                     const Roundoff& roundoff);

/// How many times the naive form's error is allowed, before the floor.
struct Factors {
    double forward;
    double gradients;
};
/// Factors for the largest error. In 16 bits they are 1, since the naive form rounds S, P, dP and dS. In
/// float32 both forms round equally often, in different places, so the factors are larger.
Factors factors_of(DType dtype);
/// Factors for the root mean square error. In 16 bits they are 0, since Reference::own bounds every rounding.
Factors average_factors_of(DType dtype);

/// One comparison; it passes when error <= bound.
struct Finding {
    std::string what;  ///< "dQ: largest error", say
    double error = 0;
    double bound = 0;
    std::int64_t element = -1;  ///< of the output, where a single one is meant
    double value = 0, expected = 0;

    bool ok() const { return error <= bound; }
    double ratio() const { return error == 0 ? 0 : error / bound; }
};
std::ostream& operator<<(std::ostream& out, const Finding& finding);

/// Every element of `result` within factor * (largest error of `naive`) + floor.
std::vector<Finding> largest_errors(const Result& naive, const Result& result, const Reference& reference,
                                    const Factors& factors);
/// Of each output, root mean squares: within factor * that of `naive`, plus that of the derived bounds.
std::vector<Finding> root_mean_square_errors(const Result& naive, const Result& result,
                                             const Reference& reference, const Factors& factors);
/// Each row's error along the result (LSE's as it is; dQ's once more along what an error in D does) is as
/// likely up as down: the sum over the rows lies within 5 sample standard deviations of such a sum, plus what
/// the arithmetic may do in one direction. Only for rows that differ: those of random_inputs and
/// offset_inputs.
std::vector<Finding> biases(const Problem& problem, const Result& result, const Reference& reference);

/// The errors' sum along `direction`, row by row of `columns`, against 5 standard deviations of what rows
/// that err independently add up to, plus what `coherent`, a bound of each element's error of one direction,
/// allows.
Finding bias(std::string what, const std::vector<double>& values, const std::vector<double>& expected,
             const std::vector<double>& direction, const std::vector<double>& coherent, std::int64_t columns);

/// 0 for no numbers.
double root_mean_square(const std::vector<double>& x);

/// Largest |a - b|; equal infinities differ by 0, NaN from anything by infinity.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace gradtile::attention::accuracy

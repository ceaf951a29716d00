#pragma once
/// Rotary position embedding (Su et al. 2021, "RoFormer", eq. 34; pairs as in Llama checkpoints), with the
/// changes of its frequencies for longer contexts.
#include <memory>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// How the frequencies f_i follow from base^(-2i/R), i = 0 .. R/2-1, for R rotated columns. Every kind but
/// half_truncated computes what the function of its name in transformers' modeling_rope_utils computes:
///   none            unchanged (Su et al. 2021, "RoFormer")
///   linear          divided by `factor` (Chen et al. 2023, "Position Interpolation")
///   dynamic         the base grows with context / original_context ("dynamic NTK", emozilla 2023)
///   llama3          low frequencies are divided by `factor`, high ones are not (Llama 3.1)
///   yarn            as llama3 with another ramp, and a factor on the rotations (Peng et al. 2023)
///   longrope        a divisor per frequency, and a factor on the rotations (Ding et al. 2024)
///   half_truncated  R/4 from 1 to 1/base, the others 0 (modded-nanogpt)
enum class RopeKind { none, linear, dynamic, llama3, yarn, longrope, half_truncated };

/// The kind and its parameters, which other kinds ignore. The defaults are transformers' or, for llama3,
/// those of the published models.
struct RopeScaling {
    RopeKind kind = RopeKind::none;
    double factor = 1.0;                ///< linear, dynamic, llama3, yarn, longrope
    std::int64_t original_context = 0;  ///< the context before the extension; 0: the context
    double low_factor = 1.0;            ///< llama3: wavelengths beyond original_context / low_factor are low
    double high_factor = 4.0;           ///< llama3: wavelengths below original_context / high_factor are high
    double beta_fast = 32.0;  ///< yarn: rotations in original_context above which a frequency is unchanged
    double beta_slow = 1.0;   ///< yarn: rotations in original_context below which a frequency is divided
    bool truncate = true;     ///< yarn: the ramp begins and ends at whole indices
    /// yarn, longrope: the factor on cosines and sines. 0: it follows from `factor`, for yarn also from
    /// mscale and mscale_all_dim (DeepSeek-V2) unless one of these is 0.
    double attention_factor = 0.0;
    double mscale = 0.0, mscale_all_dim = 0.0;
    /// longrope: R/2 divisors each. The short ones apply if the context is at most original_context.
    std::vector<double> short_factors = {}, long_factors = {};

    bool operator==(const RopeScaling&) const = default;
};

/// The angle per position for each rotated pair of columns, and the factor on cosines and sines.
struct RopeFrequencies {
    std::vector<double> values;  ///< [R/2]
    double magnitude = 1.0;
};

/// Computes the frequencies of R = `width` rotated columns in float64. transformers chooses by the length of
/// the text at hand whether dynamic and longrope change the frequencies; here the context decides, so that a
/// key does not change when its text grows. Throws Error if longrope's lists do not have width/2 elements.
RopeFrequencies rope_frequencies(std::int64_t width, double base, std::int64_t context,
                                 const RopeScaling& scaling = {});

/// Rotates each pair (x[i], x[i + D/2]) in a head at position t by the angle t * f_i, with f_i = base^(-2i/D)
/// or other frequencies, and multiplies it by their magnitude. x [B,S,H,D] has any floating dtype and a
/// contiguous last axis. Batch, position and head axes may be strided, so one call can rotate a packed
/// projection's query and key heads in place.
class Rope {
  public:
    /// Rotates positions 0 .. max_positions-1. D must be even. The angles are computed in float64, in a table
    /// that grows with the positions in use: its memory depends on the texts, not on max_positions. On a GPU,
    /// growth copies the table to memory from the GPU's system allocator, and waits for the copy.
    Rope(std::int64_t head_dim, std::int64_t max_positions, double base = 10000.0);
    /// The same with D/2 given frequencies.
    Rope(RopeFrequencies frequencies, std::int64_t max_positions);

    /// Cosines and sines [N, D/2] for N tokens at any positions, in one dtype.
    struct Angles {
        Tensor cosines = {}, sines = {};
    };
    /// Looks up the angles for `positions` (int32, N elements), which must all be below `end`; -1: below
    /// max_positions. On the CPU, a position outside the table throws Error; on a GPU its angles are NaN.
    Angles angles_at(const Context& ctx, const Tensor& positions, DType dtype, std::int64_t end = -1) const;
    /// Returns views of the angles for positions start .. start+length-1.
    Angles angles_from(const Context& ctx, std::int64_t start, std::int64_t length, DType dtype) const;

    /// Rotates x [B,N,H,D] in place by the given angles for N tokens.
    void forward(const Context& ctx, const Tensor& x, const Angles& angles) const;
    void backward(const Context& ctx, const Tensor& dx, const Angles& angles) const;
    /// Rotates x in place. `start` is the position of x's first token. backward needs no saved values.
    void forward(const Context& ctx, const Tensor& x, std::int64_t start = 0) const;
    /// Rotates dx back in place, which gives the gradient with respect to the unrotated x.
    void backward(const Context& ctx, const Tensor& dx, std::int64_t start = 0) const;

    std::int64_t head_dim() const;
    std::int64_t max_positions() const;

  private:
    struct Tables;
    void check_heads(const Tensor& x) const;
    void rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const;
    void rotate(const Context& ctx, const Tensor& x, const Angles& angles, bool inverse) const;
    std::shared_ptr<Tables> tables_;  // copies of a Rope share the tables
};

template <>
struct EnumNames<RopeKind> {
    static constexpr std::array names = {
        std::pair{RopeKind::none, std::string_view("none")},
        std::pair{RopeKind::linear, std::string_view("linear")},
        std::pair{RopeKind::dynamic, std::string_view("dynamic")},
        std::pair{RopeKind::llama3, std::string_view("llama3")},
        std::pair{RopeKind::yarn, std::string_view("yarn")},
        std::pair{RopeKind::longrope, std::string_view("longrope")},
        std::pair{RopeKind::half_truncated, std::string_view("half-truncated")}};
};

}  // namespace gradtile

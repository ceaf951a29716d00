#include <gradtile/layers/rope.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gradtile {
namespace {

double real(std::int64_t x) {
    return static_cast<double>(x);
}

/// base^(-2i/width), i = 0 .. width/2-1.
std::vector<double> unscaled_frequencies(std::int64_t width, double base) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < width / 2; ++i)
        frequencies.push_back(std::pow(base, -2.0 * real(i) / real(width)));
    return frequencies;
}

double llama3_frequency(double frequency, double original_context, const RopeScaling& s) {
    const double rotations = original_context * frequency / (2 * std::numbers::pi);
    if (rotations > s.high_factor) return frequency;
    if (rotations < s.low_factor) return frequency / s.factor;
    const double unchanged = (rotations - s.low_factor) / (s.high_factor - s.low_factor);
    return (1 - unchanged) * frequency / s.factor + unchanged * frequency;
}

/// Replaces frequencies that rotate less than beta_slow times in the original context by their `factor`-th
/// part. Between beta_slow and beta_fast the two are mixed, linearly in the index.
void apply_yarn(std::vector<double>& frequencies, double width, double base, double original_context,
                const RopeScaling& s) {
    const auto index_with = [&](double rotations) {
        return width * std::log(original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    double low = index_with(s.beta_fast), high = index_with(s.beta_slow);
    if (s.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, width - 1);
    if (low == high) high += 0.001;  // as in transformers
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] = frequencies[i] / s.factor * divided + frequencies[i] * (1 - divided);
    }
}

double yarn_magnitude(const RopeScaling& s) {
    if (s.attention_factor != 0) return s.attention_factor;
    const auto magnitude = [&](double scale) {
        return s.factor <= 1 ? 1.0 : 0.1 * scale * std::log(s.factor) + 1.0;
    };
    return s.mscale != 0 && s.mscale_all_dim != 0 ? magnitude(s.mscale) / magnitude(s.mscale_all_dim)
                                                  : magnitude(1);
}

double longrope_magnitude(double original_context, const RopeScaling& s) {
    if (s.attention_factor != 0) return s.attention_factor;
    return s.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(s.factor) / std::log(original_context));
}

void divide(std::vector<double>& frequencies, const std::vector<double>& factors) {
    check(factors.size() == frequencies.size(), "rope: longrope has ", factors.size(),
          " factors; expected one for each of ", frequencies.size(), " frequencies");
    for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
}

}  // namespace

RopeFrequencies rope_frequencies(std::int64_t width, double base, std::int64_t context,
                                 const RopeScaling& s) {
    check(width > 0 && width % 2 == 0, "rope: ", width, " columns; expected an even number");
    check(base > 0, "rope: base ", base, " is not positive");
    const double original = real(s.original_context == 0 ? context : s.original_context);
    const double longer = std::max(real(context), original);
    RopeFrequencies rope{unscaled_frequencies(width, base)};
    switch (s.kind) {
        case RopeKind::none:
            return rope;
        case RopeKind::linear:
            for (double& frequency : rope.values) frequency /= s.factor;
            return rope;
        case RopeKind::dynamic: {
            const double growth = s.factor * longer / original - (s.factor - 1);
            if (width > 2) base *= std::pow(growth, real(width) / real(width - 2));
            return {unscaled_frequencies(width, base)};
        }
        case RopeKind::llama3:
            for (double& frequency : rope.values) frequency = llama3_frequency(frequency, original, s);
            return rope;
        case RopeKind::yarn:
            apply_yarn(rope.values, real(width), base, original, s);
            rope.magnitude = yarn_magnitude(s);
            return rope;
        case RopeKind::longrope:
            divide(rope.values, real(context) > original ? s.long_factors : s.short_factors);
            rope.magnitude = longrope_magnitude(original, s);
            return rope;
        case RopeKind::half_truncated: {
            const std::int64_t rotated = std::max<std::int64_t>(1, width / 4);
            for (std::int64_t i = 0; i < width / 2; ++i)
                rope.values[static_cast<std::size_t>(i)] =
                    i >= rotated ? 0.0
                                 : std::pow(base, -real(i) / real(std::max<std::int64_t>(1, rotated - 1)));
            return rope;
        }
    }
    throw Error("rope: unknown kind");
}

}  // namespace gradtile

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <gradtile/layers/internal/softcap_formulas.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

/// to = row * factor. `to` may start at the same address as `row` and have a narrower type, so converted
/// values are collected in a small buffer before they overwrite the row.
template <class Out, class Sum>
void store_scaled(Out* to, const Sum* row, std::int64_t width, Sum factor) {
    constexpr std::int64_t stage = 256;
    Out staged[stage];
    for (std::int64_t begin = 0; begin < width; begin += stage) {
        const std::int64_t count = std::min(stage, width - begin);
        for (std::int64_t i = 0; i < count; ++i) staged[i] = convert<Out>(row[begin + i] * factor);
        std::memcpy(static_cast<void*>(to + begin), staged, static_cast<std::size_t>(count) * sizeof(Out));
    }
}

struct SoftcapMath {
    template <class S>
    static S tanh(S x) {
        return vector_math::tanh(x);
    }
    template <class S>
    static S reciprocal_sqrt(S x) {
        return 1 / std::sqrt(x);
    }
};

/// Caps a row's logits, and stores the cap's slopes if they are wanted.
template <class Sum>
void cap_row(Sum* __restrict logits, Sum* __restrict slopes, std::int64_t width,
             const LogitSoftcap& softcap) {
    visit_softcap<SoftcapMath, Sum>(softcap, [&](const auto& cap) {
        if (slopes != nullptr)
            for (std::int64_t i = 0; i < width; ++i) slopes[i] = cap(logits[i]).slope;
        for (std::int64_t i = 0; i < width; ++i) logits[i] = cap(logits[i]).value;
    });
}

/// `slopes` are the derivatives of the logits, or null if these are 1.
template <class Sum, class Out>
void loss_of_row(double& loss, Out* d_logits, Sum* logits, const Sum* slopes, std::int64_t width,
                 std::int32_t target, Sum scale) {
    Lanes<Sum> maxima(-std::numeric_limits<Sum>::infinity());
    for_lanes(width, [&](std::int64_t i, int lane) {
        maxima[lane] = maxima[lane] < logits[i] ? logits[i] : maxima[lane];  // a NaN makes the sum NaN
    });
    const Sum largest = maxima.max(), target_logit = logits[target];
    Lanes<Sum> exponentials;
    for_lanes(width, [&](std::int64_t i, int lane) {
        logits[i] = vector_math::exp(logits[i] - largest);
        exponentials[lane] += logits[i];
    });
    const Sum sum = exponentials.sum();
    loss = std::log(static_cast<double>(sum)) +
           (static_cast<double>(largest) - static_cast<double>(target_logit));
    if (d_logits == nullptr) return;
    const Sum p_target = logits[target] / sum, target_slope = slopes == nullptr ? Sum(1) : slopes[target];
    if (slopes != nullptr)
        for (std::int64_t i = 0; i < width; ++i) logits[i] *= slopes[i];
    store_scaled(d_logits, logits, width, scale / sum);
    d_logits[target] = convert<Out>((p_target - 1) * scale * target_slope);
}

/// The losses and gradients of rows [begin, end).
template <class Sum, class Out>
void losses_of_rows(double* losses, Out* d_logits, std::int64_t d_stride, const Tensor& logits,
                    const std::int32_t* targets, Sum scale, const LogitSoftcap& softcap, std::int64_t begin,
                    std::int64_t end) {
    const std::int64_t width = logits.size(1);
    const bool caps = softcap.limit > 0, needs_slopes = caps && d_logits != nullptr;
    std::vector<Sum> slopes(needs_slopes ? static_cast<std::size_t>(width) : 0);
    for (std::int64_t r = begin; r < end; ++r) {
        Sum* const row = logits.data<Sum>() + r * logits.stride(0);
        Out* const d_row = d_logits == nullptr ? nullptr : d_logits + r * d_stride;
        if (targets[r] == ignored_target) {
            losses[r] = 0.0;
            if (d_row != nullptr)
                std::memset(static_cast<void*>(d_row), 0, static_cast<std::size_t>(width) * sizeof(Out));
            continue;
        }
        Sum* const row_slopes = needs_slopes ? slopes.data() : nullptr;
        if (caps) cap_row(row, row_slopes, width, softcap);
        loss_of_row(losses[r], d_row, row, row_slopes, width, targets[r], scale);
    }
}

}  // namespace

void count_targets(const Context&, const Tensor& count, const Tensor& targets, std::int64_t vocabulary) {
    const std::int32_t* values = targets.data<std::int32_t>();
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < targets.elements(); ++i) {
        check(values[i] == ignored_target || (values[i] >= 0 && values[i] < vocabulary),
              "cross_entropy: target ", values[i], " at position ", i, " is outside the vocabulary of ",
              vocabulary, " (", ignored_target, " means ignored)");
        counted += values[i] != ignored_target;
    }
    *count.data<double>() = static_cast<double>(counted);
}

void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale,
                        const LogitSoftcap& softcap) {
    const std::int64_t width = logits.size(1);
    const double counted = *count.data<double>();
    const double factor = counted > 0 ? scale / counted : 0.0;
    const std::int32_t* target = targets.data<std::int32_t>();
    double* loss = losses.data<double>();
    visit_floating(logits.dtype(), [&]<class Sum>(TypeTag<Sum>) {
        visit_floating(d_logits.defined() ? d_logits.dtype() : logits.dtype(), [&]<class Out>(TypeTag<Out>) {
            if constexpr (sizeof(Out) <= sizeof(Sum) && std::is_same_v<Accumulator<Out>, Sum>) {
                Out* const d_rows = data_or_null<Out>(d_logits);
                const std::int64_t d_stride = d_logits.defined() ? d_logits.stride(0) : 0;
                parallel_ranges(ctx, logits.size(0), rows_per_block(width),
                                [&](std::int64_t begin, std::int64_t end) {
                                    losses_of_rows(loss, d_rows, d_stride, logits, target,
                                                   static_cast<Sum>(factor), softcap, begin, end);
                                });
            } else {
                throw Error(
                    concat("cross_entropy: d_logits are ", d_logits.dtype(), " and logits ", logits.dtype()));
            }
        });
    });
}

void cap_logits(const Context& ctx, const Tensor& logits, const LogitSoftcap& softcap) {
    visit_floating(logits.dtype(), [&]<class T>(TypeTag<T>) {
        if constexpr (std::is_same_v<T, Accumulator<T>>) {
            parallel_ranges(ctx, logits.elements(), rows_per_block(1),
                            [&](std::int64_t begin, std::int64_t end) {
                                cap_row<T>(logits.data<T>() + begin, nullptr, end - begin, softcap);
                            });
        } else {
            throw Error(concat("cross_entropy: logits ", logits, "; expected float32 or float64"));
        }
    });
}

void sum_losses(const Context&, const Tensor& total, const Tensor& losses, const Tensor& count) {
    const double* values = losses.data<double>();
    const double counted = *count.data<double>();
    double sum = 0.0;
    for (std::int64_t i = 0; i < losses.elements(); ++i) sum += values[i];
    double* out = total.data<double>();
    if (total.elements() == 1) {
        out[0] = counted > 0 ? sum / counted : 0.0;
    } else {
        out[0] = sum;
        out[1] = counted;
    }
}

}  // namespace gradtile::cpu

#include <cmath>
#include <cstring>
#include <limits>

#include <gradtile/core/cpu/lanes.h>
#include <gradtile/core/cpu/vector_math.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
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

template <class Sum, class Out>
void loss_of_row(double& loss, Out* d_logits, Sum* logits, std::int64_t width, std::int32_t target,
                 Sum scale) {
    if (target == ignored_target) {
        loss = 0.0;
        if (d_logits != nullptr)
            std::memset(static_cast<void*>(d_logits), 0, static_cast<std::size_t>(width) * sizeof(Out));
        return;
    }
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
    const Sum p_target = logits[target] / sum;
    store_scaled(d_logits, logits, width, scale / sum);
    d_logits[target] = convert<Out>((p_target - 1) * scale);
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
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale) {
    const std::int64_t width = logits.size(1);
    const double counted = *count.data<double>();
    const double factor = counted > 0 ? scale / counted : 0.0;
    const std::int32_t* target = targets.data<std::int32_t>();
    double* loss = losses.data<double>();
    visit_floating(logits.dtype(), [&]<class Sum>(TypeTag<Sum>) {
        visit_floating(d_logits.defined() ? d_logits.dtype() : logits.dtype(), [&]<class Out>(TypeTag<Out>) {
            if constexpr (sizeof(Out) <= sizeof(Sum) && std::is_same_v<Accumulator<Out>, Sum>) {
                Sum* rows = logits.data<Sum>();
                Out* d_rows = d_logits.defined() ? d_logits.data<Out>() : nullptr;
                parallel_ranges(
                    ctx, logits.size(0), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t r = begin; r < end; ++r)
                            loss_of_row(
                                loss[r], d_rows == nullptr ? nullptr : d_rows + r * d_logits.stride(0),
                                rows + r * logits.stride(0), width, target[r], static_cast<Sum>(factor));
                    });
            } else {
                throw Error(
                    concat("cross_entropy: d_logits are ", d_logits.dtype(), " and logits ", logits.dtype()));
            }
        });
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

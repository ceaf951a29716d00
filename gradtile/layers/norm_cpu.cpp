#include <cmath>

#include <gradtile/layers/norm_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

template <class T, bool centred>
void forward(const Context& ctx, const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
             const Tensor& weight, const Tensor& bias, double eps) {
    using Sum = Accumulator<T>;
    const Rows<T> xs(x, "norm"), ys(y, "norm");
    const std::int64_t width = xs.width();
    Sum* means = nullptr;
    if constexpr (centred) means = mean.data<Sum>();
    Sum* rstds = rstd.data<Sum>();
    const T* w = weight.data<T>();
    const T* b = bias.defined() ? bias.data<T>() : nullptr;
    parallel_ranges(ctx, xs.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            const T* row = xs[r];
            T* out = ys[r];
            Sum m = 0;
            if constexpr (centred) {
                for (std::int64_t i = 0; i < width; ++i) m += convert<Sum>(row[i]);
                m /= static_cast<Sum>(width);
                means[r] = m;
            }
            Sum squares = 0;
            for (std::int64_t i = 0; i < width; ++i) {
                const Sum d = convert<Sum>(row[i]) - m;
                squares += d * d;
            }
            const Sum s = 1 / std::sqrt(squares / static_cast<Sum>(width) + static_cast<Sum>(eps));
            rstds[r] = s;
            for (std::int64_t i = 0; i < width; ++i) {
                Sum value = (convert<Sum>(row[i]) - m) * s * convert<Sum>(w[i]);
                if (b != nullptr) value += convert<Sum>(b[i]);
                out[i] = convert<T>(value);
            }
        }
    });
}

template <class T, bool centred>
void backward(const Context& ctx, const NormGradients& out, const NormInputs& in) {
    using Sum = Accumulator<T>;
    const Rows<T> dys(in.dy, "norm"), xs(in.x, "norm"), dxs(out.dx, "norm");
    const std::int64_t width = xs.width(), grain = norm_rows_per_partial(xs.count());
    const Sum* means = nullptr;
    if constexpr (centred) means = in.mean.data<Sum>();
    const Sum* rstds = in.rstd.data<Sum>();
    const T* w = in.weight.data<T>();
    Sum* partials = out.partials.data<Sum>();
    parallel_ranges(ctx, xs.count(), grain, [&](std::int64_t begin, std::int64_t end) {
        Sum* dw = partials + begin / grain * 2 * width;
        Sum* db = dw + width;
        std::fill(dw, dw + 2 * width, Sum(0));
        for (std::int64_t r = begin; r < end; ++r) {
            const T* dy = dys[r];
            const T* x = xs[r];
            T* dx = dxs[r];
            const Sum m = centred ? means[r] : Sum(0), s = rstds[r];
            Sum sum_g = 0, sum_gx = 0;  // g = dy * weight, the gradient of the normalised row
            for (std::int64_t i = 0; i < width; ++i) {
                const Sum normal = (convert<Sum>(x[i]) - m) * s, d = convert<Sum>(dy[i]);
                const Sum g = d * convert<Sum>(w[i]);
                dw[i] += d * normal;
                db[i] += d;
                sum_g += g;
                sum_gx += g * normal;
            }
            const Sum mean_g = centred ? sum_g / static_cast<Sum>(width) : Sum(0);
            const Sum mean_gx = sum_gx / static_cast<Sum>(width);
            for (std::int64_t i = 0; i < width; ++i) {
                const Sum normal = (convert<Sum>(x[i]) - m) * s;
                const Sum g = convert<Sum>(dy[i]) * convert<Sum>(w[i]);
                Sum value = s * (g - mean_g - normal * mean_gx);
                if (out.accumulate_dx) value += convert<Sum>(dx[i]);
                dx[i] = convert<T>(value);
            }
        }
    });
    Sum* dw = out.weight.data<Sum>();
    Sum* db = out.bias.defined() ? out.bias.data<Sum>() : nullptr;
    for (std::int64_t block = 0; block < out.partials.size(0); ++block) {
        const Sum* partial = partials + block * 2 * width;
        for (std::int64_t i = 0; i < width; ++i) dw[i] += partial[i];
        if (db != nullptr)
            for (std::int64_t i = 0; i < width; ++i) db[i] += partial[width + i];
    }
}

}  // namespace

void norm_forward(const Context& ctx, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                  const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        if (mean.defined()) {
            forward<T, true>(ctx, y, mean, rstd, x, weight, bias, eps);
        } else {
            forward<T, false>(ctx, y, mean, rstd, x, weight, bias, eps);
        }
    });
}

void norm_backward(const Context& ctx, const NormGradients& out, const NormInputs& in) {
    visit_floating(in.x.dtype(), [&]<class T>(TypeTag<T>) {
        if (in.mean.defined()) {
            backward<T, true>(ctx, out, in);
        } else {
            backward<T, false>(ctx, out, in);
        }
    });
}

}  // namespace gradtile::cpu

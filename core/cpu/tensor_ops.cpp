#include <algorithm>
#include <cstring>

#include <gradtile/core/internal/strided_rows.h>
#include <gradtile/core/internal/tensor_ops_backend.h>

namespace gradtile::cpu {

void fill(const Context& ctx, const Tensor& x, double value) {
    visit_any(x.dtype(), [&]<class T>(TypeTag<T>) {
        T* data = x.data<T>();
        const T element = convert<T>(value);
        const std::int64_t step = last_stride(x);
        const auto fill_row = [&](std::int64_t offset, std::int64_t count) {
            if (step == 1) {
                std::fill_n(data + offset, count, element);
            } else {
                for (std::int64_t i = 0; i < count; ++i) data[offset + i * step] = element;
            }
        };
        for_rows(ctx, fill_row, x);
    });
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    const std::int64_t to_step = last_stride(destination), from_step = last_stride(source);
    visit_any(destination.dtype(), [&]<class To>(TypeTag<To>) {
        visit_any(source.dtype(), [&]<class From>(TypeTag<From>) {
            To* to = destination.data<To>();
            const From* from = source.data<From>();
            const auto copy_row = [&](std::int64_t to_offset, std::int64_t from_offset, std::int64_t count) {
                To* t = to + to_offset;
                const From* f = from + from_offset;
                if (to_step == 1 && from_step == 1) {  // unit steps: a loop that vectorises
                    if constexpr (std::is_same_v<To, From>) {
                        std::memmove(t, f, static_cast<std::size_t>(count) * sizeof(To));
                    } else {
                        for (std::int64_t i = 0; i < count; ++i) t[i] = convert<To>(f[i]);
                    }
                    return;
                }
                for (std::int64_t i = 0; i < count; ++i) t[i * to_step] = convert<To>(f[i * from_step]);
            };
            for_rows(ctx, copy_row, destination, source);
        });
    });
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    const std::int64_t y_step = last_stride(y), x_step = last_stride(x);
    visit_floating(y.dtype(), [&]<class Y>(TypeTag<Y>) {
        visit_floating(x.dtype(), [&]<class X>(TypeTag<X>) {
            using Sum = Accumulator<Y>;
            Y* ys = y.data<Y>();
            const X* xs = x.data<X>();
            const Sum a = static_cast<Sum>(alpha);
            const auto added = [&](Y old, X value) {
                return convert<Y>(convert<Sum>(old) + a * convert<Sum>(value));
            };
            const auto add_row = [&](std::int64_t y_offset, std::int64_t x_offset, std::int64_t count) {
                Y* to = ys + y_offset;
                const X* from = xs + x_offset;
                if (y_step == 1 && x_step == 1) {  // unit steps: a loop that vectorises
                    for (std::int64_t i = 0; i < count; ++i) to[i] = added(to[i], from[i]);
                } else {
                    for (std::int64_t i = 0; i < count; ++i)
                        to[i * y_step] = added(to[i * y_step], from[i * x_step]);
                }
            };
            for_rows(ctx, add_row, y, x);
        });
    });
}

}  // namespace gradtile::cpu

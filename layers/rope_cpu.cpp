#include <gradtile/layers/internal/rope_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {

void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse) {
    const std::int64_t length = x.size(1), heads = x.size(2), half = x.size(3) / 2;
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        T* data = x.data<T>();
        const Sum* cosine_rows = cosines.data<Sum>();
        const Sum* sine_rows = sines.data<Sum>();
        const Sum sign = inverse ? Sum(-1) : Sum(1);
        parallel_ranges(ctx, x.size(0) * length, rows_per_block(heads * 2 * half),
                        [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t token = begin; token < end; ++token) {
                                const std::int64_t t = token % length;
                                const Sum* __restrict cosine = cosine_rows + t * half;
                                const Sum* __restrict sine = sine_rows + t * half;
                                T* row = data + token / length * x.stride(0) + t * x.stride(1);
                                for (std::int64_t h = 0; h < heads; ++h) {
                                    T* __restrict a = row + h * x.stride(2);
                                    T* __restrict b = a + half;
                                    for (std::int64_t i = 0; i < half; ++i) {
                                        const Sum u = convert<Sum>(a[i]), v = convert<Sum>(b[i]);
                                        const Sum s = sign * sine[i];
                                        a[i] = convert<T>(u * cosine[i] - v * s);
                                        b[i] = convert<T>(v * cosine[i] + u * s);
                                    }
                                }
                            }
                        });
    });
}

}  // namespace gradtile::cpu

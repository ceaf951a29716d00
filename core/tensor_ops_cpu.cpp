#include <algorithm>
#include <cstring>

#include <gradtile/core/internal/tensor_ops_backend.h>

namespace gradtile::cpu {
namespace {

constexpr std::int64_t grain =
    1 << 14;  // elements a block; fixed, so that work is cut the same for any thread count

template <class F>
void visit_any(DType type, F&& f) {
    if (type == DType::i32) {
        f(TypeTag<std::int32_t>{});
    } else {
        visit_floating(type, f);
    }
}

/// Element offset of the index-th element in row-major order.
std::int64_t offset_of(const Tensor& x, std::int64_t index) {
    std::int64_t offset = 0;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
        offset += index % x.size(axis) * x.stride(axis);
        index /= x.size(axis);
    }
    return offset;
}

/// Calls row(offset_a, offset_b, count) for stretches along the last axis; strides of that axis are the
/// caller's.
template <class Row>
void for_rows(const Context& ctx, const Tensor& a, const Tensor& b, Row&& row) {
    const std::int64_t count = a.elements();
    if (count == 0) return;
    if (a.is_contiguous() && b.is_contiguous()) {
        parallel_ranges(ctx, count, grain,
                        [&](std::int64_t begin, std::int64_t end) { row(begin, begin, end - begin); });
        return;
    }
    const std::int64_t last = a.rank() == 0 ? 1 : a.size(-1);
    parallel_ranges(ctx, count / last, std::max<std::int64_t>(1, grain / last),
                    [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t r = begin; r < end; ++r)
                            row(offset_of(a, r * last), offset_of(b, r * last), last);
                    });
}

std::int64_t last_stride(const Tensor& x) {
    return x.rank() == 0 || x.is_contiguous() ? 1 : x.stride(-1);
}

}  // namespace

void fill(const Context& ctx, const Tensor& x, double value) {
    visit_any(x.dtype(), [&]<class T>(TypeTag<T>) {
        T* data = x.data<T>();
        const T element = convert<T>(value);
        const std::int64_t step = last_stride(x);
        for_rows(ctx, x, x, [&](std::int64_t offset, std::int64_t, std::int64_t count) {
            if (step == 1) {
                std::fill_n(data + offset, count, element);
            } else {
                for (std::int64_t i = 0; i < count; ++i) data[offset + i * step] = element;
            }
        });
    });
}

void copy(const Context& ctx, const Tensor& destination, const Tensor& source) {
    const bool packed = destination.is_contiguous() && source.is_contiguous();
    const std::int64_t to_step = packed ? 1 : last_stride(destination);
    const std::int64_t from_step = packed ? 1 : last_stride(source);
    visit_any(destination.dtype(), [&]<class To>(TypeTag<To>) {
        visit_any(source.dtype(), [&]<class From>(TypeTag<From>) {
            To* to = destination.data<To>();
            const From* from = source.data<From>();
            for_rows(ctx, destination, source,
                     [&](std::int64_t to_offset, std::int64_t from_offset, std::int64_t count) {
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
                         for (std::int64_t i = 0; i < count; ++i)
                             t[i * to_step] = convert<To>(f[i * from_step]);
                     });
        });
    });
}

void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x) {
    const bool packed = y.is_contiguous() && x.is_contiguous();
    const std::int64_t y_step = packed ? 1 : last_stride(y), x_step = packed ? 1 : last_stride(x);
    visit_floating(y.dtype(), [&]<class Y>(TypeTag<Y>) {
        visit_floating(x.dtype(), [&]<class X>(TypeTag<X>) {
            using Sum = Accumulator<Y>;
            Y* ys = y.data<Y>();
            const X* xs = x.data<X>();
            const Sum a = static_cast<Sum>(alpha);
            for_rows(ctx, y, x, [&](std::int64_t y_offset, std::int64_t x_offset, std::int64_t count) {
                Y* to = ys + y_offset;
                const X* from = xs + x_offset;
                const auto added = [&](Y old, X value) {
                    return convert<Y>(convert<Sum>(old) + a * convert<Sum>(value));
                };
                if (y_step == 1 && x_step == 1) {  // unit steps: a loop that vectorises
                    for (std::int64_t i = 0; i < count; ++i) to[i] = added(to[i], from[i]);
                } else {
                    for (std::int64_t i = 0; i < count; ++i)
                        to[i * y_step] = added(to[i * y_step], from[i * x_step]);
                }
            });
        });
    });
}

}  // namespace gradtile::cpu

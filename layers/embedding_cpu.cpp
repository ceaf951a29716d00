#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

template <class Sum, class T>
void add_row(Sum* __restrict to, const T* __restrict from, std::int64_t width) {
    for (std::int64_t i = 0; i < width; ++i) to[i] += convert<Sum>(from[i]);
}

}  // namespace

void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight) {
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const std::int64_t vocabulary = weight.size(0), width = weight.size(1);
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        T* out = y.data<T>();
        const T* w = weight.data<T>();
        parallel_ranges(ctx, tokens.elements(), rows_per_block(width),
                        [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t i = begin; i < end; ++i) {
                                check(ids[i] >= 0 && ids[i] < vocabulary, "embedding: token ", ids[i],
                                      " at position ", i, " is outside the vocabulary of ", vocabulary);
                                std::copy_n(w + ids[i] * width, width, out + i * width);
                            }
                        });
    });
}

void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy,
                        const Tensor& tokens) {
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const std::int64_t count = tokens.elements(), width = weight_grad.size(1);
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const TensorRows<T> dys(dy, "embedding");
        Sum* grad = weight_grad.data<Sum>();
        // Each block adds all positions for its own column range. So only one block writes an element, and
        // the rows of dy that belong to a token are added in position order.
        constexpr std::int64_t columns = 64;
        parallel_ranges(ctx, width, columns, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = 0; i < count; ++i)
                add_row(grad + ids[i] * width + begin, dys[i] + begin, end - begin);
        });
    });
}

void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight) {
    const std::int64_t positions = weight.size(0), width = weight.size(1);
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const TensorRows<T> ys(y, "position_embedding"), xs(x, "position_embedding");
        const T* w = weight.data<T>();
        parallel_ranges(ctx, xs.count(), rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t r = begin; r < end; ++r) {
                const T* from = xs[r];
                const T* position = w + r % positions * width;
                T* to = ys[r];
                for (std::int64_t i = 0; i < width; ++i)
                    to[i] = convert<T>(convert<Sum>(from[i]) + convert<Sum>(position[i]));
            }
        });
    });
}

void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy) {
    const std::int64_t positions = weight_grad.size(0), width = weight_grad.size(1);
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        using Sum = Accumulator<T>;
        const TensorRows<T> dys(dy, "position_embedding");
        Sum* grad = weight_grad.data<Sum>();
        const std::int64_t samples = dy.size(0);
        parallel_ranges(ctx, positions, rows_per_block(width * std::max<std::int64_t>(1, samples)),
                        [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t sample = 0; sample < samples; ++sample)
                                for (std::int64_t t = begin; t < end; ++t)
                                    add_row(grad + t * width, dys[sample * positions + t], width);
                        });
    });
}

}  // namespace gradtile::cpu

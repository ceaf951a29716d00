#include <gradtile/core/gemm_backend.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

const char* cpu_matrix_library() {
    return "built-in loops";
}

namespace cpu {

// Plain loops until the matrix library stands behind this file.
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options) {
    if (c.rank() > 2) {
        GemmOptions inner = options;
        for (std::int64_t i = 0; i < c.size(0); ++i)
            cpu::gemm(ctx, c.select(0, i), a.select(0, i), b.select(0, i), inner);
        return;
    }
    const std::int64_t m = c.size(0), n = c.size(1), k = a.size(options.trans_a ? 0 : 1);
    visit_floating(a.dtype(), [&]<class In>(TypeTag<In>) {
        visit_floating(c.dtype(), [&]<class Out>(TypeTag<Out>) {
            using Sum = Accumulator<In>;
            const In* as = a.data<In>();
            const In* bs = b.data<In>();
            Out* cs = c.data<Out>();
            std::vector<double> bias;
            if (options.bias.defined()) bias = to_host(ctx, options.bias);
            parallel_ranges(ctx, m, 8, [&](std::int64_t begin, std::int64_t end) {
                std::vector<Sum> row(static_cast<std::size_t>(n));
                for (std::int64_t i = begin; i < end; ++i) {
                    std::fill(row.begin(), row.end(), Sum(0));
                    for (std::int64_t p = 0; p < k; ++p) {
                        const Sum x =
                            convert<Sum>(as[options.trans_a ? p * a.stride(0) + i : i * a.stride(0) + p]);
                        for (std::int64_t j = 0; j < n; ++j)
                            row[static_cast<std::size_t>(j)] +=
                                x *
                                convert<Sum>(bs[options.trans_b ? j * b.stride(0) + p : p * b.stride(0) + j]);
                    }
                    for (std::int64_t j = 0; j < n; ++j) {
                        Out& target = cs[i * c.stride(0) + j];
                        Sum value = convert<Sum>(options.alpha) * row[static_cast<std::size_t>(j)];
                        if (options.accumulate) value += convert<Sum>(target);
                        if (!bias.empty()) value += convert<Sum>(bias[static_cast<std::size_t>(j)]);
                        target = convert<Out>(value);
                    }
                }
            });
        });
    });
}

}  // namespace cpu
}  // namespace gradtile

// Matrix products on the CPU. c is cut into fixed blocks. For each block, one thread calls the matrix library
// once, or a kernel for few rows, and adds the bias while the block is still in cache.
#include <algorithm>
#include <utility>
#include <vector>

#include <gradtile/core/gemm/internal/few_rows.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_library.h>

namespace gradtile::cpu {
namespace {

struct BlockShape {
    std::int64_t rows, columns;
};

/// The largest block. Each library call packs its strips of a and b, so blocks must be large; but there must
/// be several, so that threads can share the work. Measured with oneDNN on one AMX core and one AVX-512 core:
///  - float32: 512 x 288 blocks for 4096 x 1152 x 384 keep 97% of the whole product's speed; 128 x 128 lose
///    5 to 10%, 64 x 64 10 to 25%.
///  - bfloat16: AMX multiplies six times faster, but packing is not faster, so a strip of b must be used for
///    about 1000 rows (256 rows reach half to two thirds of the speed). oneDNN's fast kernel requires
///    operands without gaps between rows, so rows of c and b with up to 1536 columns are not cut.
constexpr BlockShape largest_block(DType type) {
    return type == DType::bf16 ? BlockShape{1024, 1536} : BlockShape{512, 512};
}

/// The block shape for c [m, n] = a [m, k] b [k, n]. It depends on the shapes only, so that results do not
/// depend on the thread count. k is not cut, because even weight gradients in the smallest models have enough
/// blocks. Halves the longer side, relative to the largest block, until the block is not larger than the
/// largest block and there are at least four blocks (enough to balance two threads). A block with 4 million
/// operations (about 20 us in float32) or fewer is not halved, because starting a block takes time. Halves
/// are rounded up to 16 elements, which are whole cache lines.
constexpr BlockShape block_shape(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                                 BlockShape largest) {
    constexpr std::int64_t enough_blocks = 4, smallest_work = std::int64_t{4} << 20;
    std::int64_t row_parts = 1, column_parts = 1;
    for (;;) {
        const BlockShape block{row_parts == 1 ? m : rounded_up(ceil_div(m, row_parts), 16),
                               column_parts == 1 ? n : rounded_up(ceil_div(n, column_parts), 16)};
        const bool too_long = block.rows > largest.rows || block.columns > largest.columns;
        const bool too_large = block.rows * block.columns > largest.rows * largest.columns;
        const bool too_few = batch * row_parts * column_parts < enough_blocks;
        const bool worth_halving =
            std::max(block.rows, block.columns) > 32 && 2 * block.rows * block.columns * k > smallest_work;
        if (!too_large && !(worth_halving && (too_long || too_few))) return block;
        const bool halve_rows = block.columns <= 32 || (block.rows > 32 && block.rows * largest.columns >=
                                                                               block.columns * largest.rows);
        (halve_rows ? row_parts : column_parts) *= 2;
    }
}

/// Returns one thread's scratch memory for `elements` elements. The memory grows when needed and never
/// shrinks.
template <class T>
T* scratch(std::vector<T>& held, std::int64_t elements) {
    if (std::ssize(held) < elements) held.resize(static_cast<std::size_t>(elements));
    return held.data();
}

/// Copies `from`, whose rows are `ld` elements apart, to `to` [rows, columns] without gaps.
template <class From>
void widen(std::int64_t rows, std::int64_t columns, const From* from, std::int64_t ld, float* to) {
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) to[i * columns + j] = convert<float>(from[i * ld + j]);
}
/// Transposes `from` [rows, columns] into `to` [columns, rows] without gaps.
template <class From>
void widen_transposed(std::int64_t rows, std::int64_t columns, const From* from, std::int64_t ld, float* to) {
    constexpr std::int64_t tile = 16;
    for (std::int64_t i0 = 0; i0 < rows; i0 += tile)
        for (std::int64_t j = 0; j < columns; ++j)
            for (std::int64_t i = i0; i < std::min(rows, i0 + tile); ++i)
                to[j * rows + i] = convert<float>(from[i * ld + j]);
}

/// Multiplies a block after converting its operands to float32, 512 elements along k at a time. Used for
/// float16, for bfloat16 without processor support, and for a^T b^T, which oneDNN computes up to three times
/// more slowly.
template <class In>
void gemm_widened(const GemmBlock& block, const In* a, const In* b, float* c) {
    constexpr std::int64_t depth = 512;
    thread_local std::vector<float> a_scratch, b_scratch;
    for (std::int64_t p = 0; p < block.k; p += depth) {
        const std::int64_t k = std::min(depth, block.k - p);
        GemmBlock part = block;
        part.k = k;
        part.accumulate = block.accumulate || p > 0;
        const bool turn_a = block.trans_a && block.trans_b;
        part.trans_a = block.trans_a && !turn_a;
        part.lda = part.trans_a ? block.m : k;
        part.ldb = block.trans_b ? k : block.n;
        float* a_wide = scratch(a_scratch, block.m * k);
        float* b_wide = scratch(b_scratch, block.n * k);
        const In* a_part = a + (block.trans_a ? p * block.lda : p);
        const In* b_part = b + (block.trans_b ? p : p * block.ldb);
        if (turn_a) {
            widen_transposed(k, block.m, a_part, block.lda, a_wide);
        } else {
            widen(block.trans_a ? k : block.m, part.lda, a_part, block.lda, a_wide);
        }
        widen(block.trans_b ? block.n : k, part.ldb, b_part, block.ldb, b_wide);
        library_gemm(part, a_wide, b_wide, c);
    }
}

/// Multiplies one block with sums in c, which is float32 (float64 for float64).
template <class In>
void gemm_block(const GemmBlock& block, double alpha, const In* a, const In* b, Accumulator<In>* c) {
    if (block.k == 0) {
        for (std::int64_t i = 0; i < block.m && !block.accumulate; ++i)
            std::fill_n(c + i * block.ldc, block.n, Accumulator<In>(0));
        return;
    }
    if constexpr (std::is_same_v<In, double>) {
        gemm_f64(block, alpha, a, b, c);
    } else if constexpr (std::is_same_v<In, float>) {
        if (block.trans_a && block.trans_b) return gemm_widened(block, a, b, c);
        library_gemm(block, a, b, c);
    } else if constexpr (std::is_same_v<In, bfloat16>) {
        if (library_has_bfloat16() && block.alpha == 1.0f) return library_gemm(block, a, b, c);
        gemm_widened(block, a, b, c);
    } else {
        gemm_widened(block, a, b, c);
    }
}

/// A stored matrix with up to two leading batch axes.
template <class T>
struct Operand {
    T* data;
    std::int64_t ld;
    std::int64_t inner_batch, outer_step, inner_step;

    explicit Operand(const Tensor& x)
        : data(x.data<std::remove_const_t<T>>()),
          ld(row_distance(x)),
          inner_batch(x.rank() > 2 ? x.size(-3) : 1),
          outer_step(x.rank() > 3 ? x.stride(-4) : 0),
          inner_step(x.rank() > 2 ? x.stride(-3) : 0) {}

    T* at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
        return data + batch / inner_batch * outer_step + batch % inner_batch * inner_step + row * ld + column;
    }
};

/// bias[first, first + count), converted to the sum type.
template <class Sum>
const Sum* bias_of_block(const Tensor& bias, std::int64_t first, std::int64_t count) {
    thread_local std::vector<Sum> held;
    Sum* sums = scratch(held, count);
    visit_floating(bias.dtype(), [&]<class B>(TypeTag<B>) {
        const B* from = bias.data<B>() + first;
        for (std::int64_t j = 0; j < count; ++j) sums[j] = convert<Sum>(from[j]);
    });
    return sums;
}

/// c = round(alpha * sum (+ c) (+ bias)): a 16-bit c is rounded once, after everything is added.
template <class Out>
void finish_block(const GemmBlock& block, const float* sums, float alpha, const float* bias, bool accumulate,
                  Out* c, std::int64_t ldc) {
    for (std::int64_t i = 0; i < block.m; ++i) {
        const float* __restrict sum = sums + i * block.ldc;
        Out* __restrict out = c + i * ldc;
        if (accumulate) {
            for (std::int64_t j = 0; j < block.n; ++j)
                out[j] = convert<Out>(alpha * sum[j] + convert<float>(out[j]) + (bias ? bias[j] : 0.0f));
        } else if (bias) {
            for (std::int64_t j = 0; j < block.n; ++j) out[j] = convert<Out>(alpha * sum[j] + bias[j]);
        } else {
            for (std::int64_t j = 0; j < block.n; ++j) out[j] = convert<Out>(alpha * sum[j]);
        }
    }
}

/// c = round(a b (+ bias)). The library rounds, which saves a pass over float32 sums. If c has gaps between
/// rows, the product goes to a block without gaps first, because the library uses its fast kernel only then.
void multiply_and_round(GemmBlock block, const bfloat16* a, const bfloat16* b, const float* bias,
                        bfloat16* c) {
    if (block.ldc == block.n) return library_gemm(block, a, b, bias, c);
    thread_local std::vector<bfloat16> held;
    bfloat16* packed = scratch(held, block.m * block.n);
    const std::int64_t ldc = std::exchange(block.ldc, block.n);
    library_gemm(block, a, b, bias, packed);
    for (std::int64_t i = 0; i < block.m; ++i) std::copy_n(packed + i * block.n, block.n, c + i * ldc);
}

template <class In, class Out>
void gemm_typed(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
                const GemmOptions& options) {
    using Sum = Accumulator<In>;
    const std::int64_t m = c.size(-2), n = c.size(-1), k = a.size(options.trans_a ? -2 : -1);
    const std::int64_t batch = c.elements() / (m * n);
    const Operand<const In> left(a), right(b);
    const Operand<Out> out(c);
    const GemmBlock full{.m = m,
                         .n = n,
                         .k = k,
                         .lda = left.ld,
                         .ldb = right.ld,
                         .ldc = out.ld,
                         .trans_a = options.trans_a,
                         .trans_b = options.trans_b,
                         .accumulate = options.accumulate,
                         .alpha = static_cast<float>(options.alpha)};
    const FewRowsProduct<In> few_rows = few_rows_product<In>(full);
    const BlockShape shape = few_rows != nullptr
                                 ? BlockShape{m, few_rows_columns(full, sizeof(In), ctx.threads().size())}
                                 : block_shape(m, n, k, batch, largest_block(a.dtype()));
    const std::int64_t row_blocks = ceil_div(m, shape.rows), column_blocks = ceil_div(n, shape.columns);

    const auto multiply = [&](const GemmBlock& block, double alpha, const In* a_block, const In* b_block,
                              Sum* sums) {
        if constexpr (!std::is_same_v<In, double>)
            if (few_rows != nullptr) return few_rows(block, a_block, b_block, sums);
        gemm_block<In>(block, alpha, a_block, b_block, sums);
    };
    parallel_for(ctx, batch * row_blocks * column_blocks, [&](std::int64_t index) {
        const std::int64_t row = index / column_blocks % row_blocks * shape.rows;
        const std::int64_t column = index % column_blocks * shape.columns;
        const std::int64_t member = index / (row_blocks * column_blocks);
        GemmBlock block = full;
        block.m = std::min(shape.rows, m - row);
        block.n = std::min(shape.columns, n - column);
        const In* a_block = left.at(member, options.trans_a ? 0 : row, options.trans_a ? row : 0);
        const In* b_block = right.at(member, options.trans_b ? column : 0, options.trans_b ? 0 : column);
        Out* c_block = out.at(member, row, column);
        const Sum* bias =
            options.bias.defined() ? bias_of_block<Sum>(options.bias, column, block.n) : nullptr;
        if constexpr (std::is_same_v<Out, Sum>) {
            multiply(block, options.alpha, a_block, b_block, c_block);
            for (std::int64_t i = 0; bias != nullptr && i < block.m; ++i)
                for (std::int64_t j = 0; j < block.n; ++j) c_block[i * out.ld + j] += bias[j];
        } else {
            if constexpr (std::is_same_v<In, bfloat16>) {
                if (few_rows == nullptr && library_has_bfloat16() && k > 0 && options.alpha == 1.0 &&
                    !options.accumulate)
                    return multiply_and_round(block, a_block, b_block, bias, c_block);
            }
            thread_local std::vector<float> held;
            float* sums = scratch(held, block.m * block.n);
            block.ldc = block.n;
            block.accumulate = false;
            block.alpha = 1.0f;
            multiply(block, 1.0, a_block, b_block, sums);
            finish_block(block, sums, static_cast<float>(options.alpha), bias, options.accumulate, c_block,
                         out.ld);
        }
    });
}

}  // namespace

void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options) {
    visit_floating(a.dtype(), [&]<class In>(TypeTag<In>) {
        if (c.dtype() == a.dtype()) {
            gemm_typed<In, In>(ctx, c, a, b, options);
        } else {
            gemm_typed<In, Accumulator<In>>(ctx, c, a, b, options);
        }
    });
}

}  // namespace gradtile::cpu

#include <gradtile/layers/cross_entropy_head.h>

#include <algorithm>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <gradtile/layers/vocabulary.h>

namespace gradtile {
namespace {

/// The weight [columns, C]; on a GPU including the zero rows after the vocabulary's.
const Tensor& rows_of(const Context& ctx, const Parameter& weight) {
    return ctx.device().is_cpu() ? weight.value() : weight.padded_value();
}

/// Allocates a chunk's logits [rows, columns]. Every chunk reads and writes the whole weight gradient once,
/// so chunks must not be small. On the CPU a chunk has about 64 MiB, which are 320 rows for GPT-2's
/// vocabulary. On a GPU, 65,536 tokens would need 205 such chunks, and accessing the 154 MB gradient in each
/// would take as long as the products; so a chunk has about 1 GiB there.
Tensor chunk_of_logits(const Context& ctx, std::int64_t rows, std::int64_t columns, DType dtype) {
    const bool cpu = ctx.device().is_cpu();
    const std::int64_t budget = cpu ? std::int64_t{64} << 20 : std::int64_t{1} << 30;
    const std::int64_t multiple = cpu ? 16 : 256;
    const std::int64_t row_bytes =
        std::max<std::int64_t>(1, columns) * static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t fitting = std::max(multiple, budget / row_bytes / multiple * multiple);
    return empty(ctx, {std::max<std::int64_t>(1, std::min(rows, fitting)), columns}, dtype);
}

/// A 16-bit matrix in a float32 matrix's memory, with rows at the same addresses. Rounded logit gradients
/// then need no additional memory.
Tensor as_16_bit_rows(const Tensor& matrix, DType dtype) {
    return Tensor(matrix.buffer(), matrix.raw_data(), matrix.device(), dtype, matrix.shape(),
                  {2 * matrix.stride(0), 1});
}

struct Flat {
    Tensor x;        // [N,C]
    Tensor targets;  // [N]
};

Flat flattened(const Tensor& x, const Tensor& targets, const Parameter& weight) {
    check(x.rank() >= 1 && x.size(-1) == weight.shape()[1] && x.dtype() == weight.value().dtype(),
          "cross_entropy: x ", x, " does not fit weight ", weight.value());
    bool same = targets.dtype() == DType::i32 && targets.rank() == x.rank() - 1 && targets.is_contiguous();
    for (int axis = 0; same && axis < targets.rank(); ++axis) same = targets.size(axis) == x.size(axis);
    check(same, "cross_entropy: targets ", targets, " for x ", x,
          "; expected contiguous int32, one target per row");
    return {x.reshape({targets.elements(), x.size(-1)}), targets.reshape({targets.elements()})};
}

/// The divisor for the loss sum. On the CPU targets are always counted, because counting also refuses targets
/// outside the vocabulary.
Tensor divisor(const Context& ctx, const Tensor& targets, std::int64_t vocabulary,
               const Tensor& target_count) {
    check(!target_count.defined() || (target_count.dtype() == DType::f64 && target_count.elements() == 1),
          "cross_entropy: target count ", target_count, "; expected one float64 element");
    if (target_count.defined() && !ctx.device().is_cpu()) return target_count;
    Tensor count = empty(ctx, {1}, DType::f64);
    on_device(ctx, cpu::count_targets, cuda::count_targets, count, targets, vocabulary);
    return target_count.defined() ? target_count : count;
}

/// How many rows to process. A dry run processes only two chunks, because further chunks use the same memory
/// and there may be billions.
std::int64_t rows_to_visit(const Context& ctx, std::int64_t rows, std::int64_t chunk) {
    return ctx.is_planning() ? std::min(rows, 2 * chunk) : rows;
}

}  // namespace

CrossEntropyHead::CrossEntropyHead(ParameterStore& parameters, const std::string& name,
                                   std::int64_t vocabulary, std::int64_t width, double init_std)
    : weight(parameters.add(name + ".weight", {vocabulary, width}, Init::normal(init_std),
                            vocabulary_multiple)) {}

CrossEntropyHead::CrossEntropyHead(const Parameter& shared) : weight(shared) {
    check(weight.shape().rank() == 2, "cross_entropy: weight ", weight.shape(), "; expected [V, C]");
}

Tensor CrossEntropyHead::forward(const Context& ctx, const Tensor& x, const Tensor& targets, Saved& saved,
                                 double gradient_scale, const Tensor& target_count) const {
    const Flat in = flattened(x, targets, weight);
    const std::int64_t rows = in.x.size(0), vocabulary = weight.shape()[0];
    saved.dx = empty(ctx, x.shape(), x.dtype());
    const Tensor dx = saved.dx.reshape(in.x.shape());
    const Tensor losses = empty(ctx, {rows}, DType::f64);
    const Tensor count = divisor(ctx, in.targets, vocabulary, target_count);

    const Tensor& projection = rows_of(ctx, weight);
    const std::int64_t padding = projection.size(0) - vocabulary;
    const Chunk chunk = training_chunk(ctx, rows);
    for (std::int64_t begin = 0; begin < rows_to_visit(ctx, rows, chunk.logits.size(0));
         begin += chunk.logits.size(0)) {
        const std::int64_t length = std::min(chunk.logits.size(0), rows - begin);
        const Tensor x_rows = in.x.slice(0, begin, length);
        const Tensor logits = chunk.logits.slice(0, 0, length), d_logits = chunk.d_logits.slice(0, 0, length);
        gemm(ctx, logits, x_rows, projection, {.trans_b = true});
        on_device(ctx, cpu::cross_entropy_rows, cuda::cross_entropy_rows, losses.slice(0, begin, length),
                  d_logits.slice(1, 0, vocabulary), logits.slice(1, 0, vocabulary),
                  in.targets.slice(0, begin, length), count, gradient_scale, softcap);
        if (padding > 0) fill(ctx, d_logits.slice(1, vocabulary, padding), 0.0);
        gemm(ctx, dx.slice(0, begin, length), d_logits, projection);
        if (weight.is_frozen()) continue;
        const bool accumulate = weight.begin_gradient_write().accumulates();
        const Tensor& grad = ctx.device().is_cpu() ? weight.grad() : weight.padded_grad();
        gemm(ctx, grad, d_logits, x_rows, {.trans_a = true, .accumulate = accumulate});
    }
    Tensor mean = empty(ctx, {1}, DType::f64);
    on_device(ctx, cpu::sum_losses, cuda::sum_losses, mean, losses, count);
    return mean;
}

CrossEntropyHead::Chunk CrossEntropyHead::training_chunk(const Context& ctx, std::int64_t rows) const {
    const DType dtype = weight.value().dtype();
    // On a GPU, logits in x's dtype halve the memory traffic of 16-bit training.
    const DType logits_dtype = ctx.device().is_cpu() ? accumulator_of(dtype) : dtype;
    const Tensor logits = chunk_of_logits(ctx, rows, rows_of(ctx, weight).size(0), logits_dtype);
    return {logits, logits_dtype != dtype ? as_16_bit_rows(logits, dtype) : logits};
}

Tensor CrossEntropyHead::backward(const Context&, const Saved& saved) const {
    check(saved.dx.defined(), "cross_entropy: backward needs the dx that forward saved");
    return saved.dx;
}

Tensor CrossEntropyHead::row_losses(const Context& ctx, const Tensor& x, const Tensor& targets,
                                    const Tensor& count) const {
    const std::int64_t rows = x.size(0), vocabulary = weight.shape()[0];
    const Tensor losses = empty(ctx, {rows}, DType::f64);
    on_device(ctx, cpu::count_targets, cuda::count_targets, count, targets, vocabulary);
    const Tensor& projection = rows_of(ctx, weight);
    const Tensor chunk_logits = chunk_of_logits(ctx, rows, projection.size(0), accumulator_of(x.dtype()));
    const std::int64_t chunk = chunk_logits.size(0);
    for (std::int64_t begin = 0; begin < rows_to_visit(ctx, rows, chunk); begin += chunk) {
        const std::int64_t length = std::min(chunk, rows - begin);
        const Tensor logits = chunk_logits.slice(0, 0, length);
        gemm(ctx, logits, x.slice(0, begin, length), projection, {.trans_b = true});
        on_device(ctx, cpu::cross_entropy_rows, cuda::cross_entropy_rows, losses.slice(0, begin, length),
                  Tensor(), logits.slice(1, 0, vocabulary), targets.slice(0, begin, length), count, 1.0,
                  softcap);
    }
    return losses;
}

Tensor CrossEntropyHead::losses(const Context& ctx, const Tensor& x, const Tensor& targets) const {
    const Flat in = flattened(x, targets, weight);
    return row_losses(ctx, in.x, in.targets, empty(ctx, {1}, DType::f64)).reshape(targets.shape());
}

Tensor CrossEntropyHead::loss(const Context& ctx, const Tensor& x, const Tensor& targets) const {
    const Flat in = flattened(x, targets, weight);
    const Tensor count = empty(ctx, {1}, DType::f64);
    const Tensor losses = row_losses(ctx, in.x, in.targets, count);
    Tensor total = empty(ctx, {2}, DType::f64);
    on_device(ctx, cpu::sum_losses, cuda::sum_losses, total, losses, count);
    return total;
}

Tensor CrossEntropyHead::logits(const Context& ctx, const Normed& normed, Tensor result) const {
    const Tensor& x = normed.x;
    check(x.rank() >= 1 && x.size(-1) == weight.shape()[1] && x.dtype() == weight.value().dtype(),
          "cross_entropy: x ", x, " does not fit weight ", weight.value());
    Shape shape = x.shape();
    shape[-1] = weight.shape()[0];
    if (!result.defined()) result = empty(ctx, shape, accumulator_of(x.dtype()));
    check(result.shape() == shape && result.dtype() == accumulator_of(x.dtype()), "cross_entropy: logits ",
          result, " for x ", x, "; expected ", shape, ' ', accumulator_of(x.dtype()));
    if (result.elements() == 0) return result;
    const bool in_one_kernel =
        normed.inference && fuses_products(ctx, x) &&
        fused_linear_in_one_kernel(ctx, result, x, {.norm = normed.norm, .weight = weight.value()});
    if (!in_one_kernel) {
        const Tensor rows = normed.value(ctx).reshape({-1, x.size(-1)});
        gemm(ctx, result.reshape({rows.size(0), shape[-1]}), rows, weight.value(), {.trans_b = true});
    }
    if (softcap.limit > 0) on_device(ctx, cpu::cap_logits, cuda::cap_logits, result, softcap);
    return result;
}

}  // namespace gradtile

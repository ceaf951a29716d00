// memory_efficient and flash1 on the CPU. A task computes one head. The tensors are the tiled algorithms'
// slow memory, and the task's scratch memory is their fast memory.
#include <gradtile/attention/cpu/bias_gradients.h>
#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/cpu/task_scratch.h>
#include <gradtile/attention/cpu/tiled/flash1.h>
#include <gradtile/attention/cpu/tiled/memory_efficient.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>

namespace gradtile::attention::cpu {
namespace {

using namespace tiled;

/// The fast memory's size M in elements. With this size flash1's blocks have at least 64 keys at every head
/// dim, so that a sum over many keys is a sum of partial sums (docs/numerics.md). In float32 the memory takes
/// 256 KiB, which fits an L2 cache.
constexpr std::int64_t fast_memory_elements = 1 << 16;
constexpr std::int64_t elements_per_block = memory_efficient_blocks.rows * memory_efficient_blocks.keys;

/// A task's scratch memory. It contains the fast memory, followed by one block's matrices.
template <class A>
struct TaskMemory {
    static constexpr std::size_t fast_bytes = fast_memory_elements * sizeof(A);
    static constexpr std::size_t bytes =
        fast_bytes + (2 * elements_per_block + memory_efficient_blocks.rows) * sizeof(A);

    FastMemory fast;
    BlockMatrices<A> block;

    explicit TaskMemory(std::byte* data) : fast(data, fast_bytes) {
        constexpr BlockSizes sizes = memory_efficient_blocks;
        A* const s = reinterpret_cast<A*>(data + fast_bytes);
        A *const d_p = s + elements_per_block, *const rescale = d_p + elements_per_block;
        block = {.s = {s, sizes.rows, sizes.keys, sizes.keys},
                 .d_p = {d_p, sizes.rows, sizes.keys, sizes.keys},
                 .rescale = {rescale, sizes.rows, 1, 1}};
    }
};

/// Returns one (batch, head)'s matrix in a tensor [B, S, H, D].
template <class T, class E = T>
SlowMatrix<E> matrix_of(const Tensor& x, std::int64_t batch, std::int64_t head) {
    return {x.data<T>() + batch * x.stride(0) + head * x.stride(2), x.size(1), x.size(3), x.stride(1)};
}
/// Returns one (batch, head)'s numbers, one per row, in a contiguous tensor [B, H, S].
template <class A>
SlowMatrix<A> row_numbers_of(const Tensor& x, std::int64_t batch, std::int64_t head) {
    if (!x.defined()) return {};
    return {x.data<A>() + (batch * x.size(1) + head) * x.size(2), x.size(2), 1, 1};
}

Geometry tiled_geometry(const ResolvedOptions& options, const Tensor& q, const Tensor& v) {
    return {.d_qk = q.size(3), .d_v = v.size(3), .scale = options.scale, .mask = options.mask};
}

/// Calls algorithm(head, memory) for every (batch, query head). All tensors in `saved` but lse_remainder must
/// be defined.
template <class T, class Algorithm>
void tiled_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                   Algorithm&& algorithm) {
    using A = Accumulator<T>;
    const std::int64_t batch = saved.q.size(0), heads = saved.q.size(2), key_heads = saved.k.size(2);
    const std::int64_t group = key_heads == 0 ? 1 : heads / key_heads, tasks = batch * heads;
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v);
    const Writable o(ctx, saved.o, dtype_of<A>);
    const TaskScratch scratch(ctx, tasks, TaskMemory<A>::bytes);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    scratch.clear();
    parallel_for(ctx, tasks, [&](std::int64_t task) {
        const std::int64_t b = task / heads, h = task % heads;
        const TaskScratch::Piece piece(scratch);
        TaskMemory<A> memory(piece.data());
        const ForwardHead<T> head{.geometry = tiled_geometry(options, saved.q, saved.v),
                                  .rule = options.scores.rule_of<A>(b, h),
                                  .q = matrix_of<T>(q.tensor(), b, h),
                                  .k = matrix_of<T>(k.tensor(), b, h / group),
                                  .v = matrix_of<T>(v.tensor(), b, h / group),
                                  .o = matrix_of<A>(o.tensor(), b, h),
                                  .lse = row_numbers_of<A>(saved.lse, b, h),
                                  .lse_remainder = row_numbers_of<A>(saved.lse_remainder, b, h),
                                  .row_max = row_numbers_of<A>(saved.row_max, b, h),
                                  .row_sum = row_numbers_of<A>(saved.row_sum, b, h)};
        algorithm(head, memory);
    });
    o.store(ctx);
}

/// Calls algorithm(heads, memory) for every (batch, K/V head).
template <class T, class Algorithm>
void tiled_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into, Algorithm&& algorithm) {
    using A = Accumulator<T>;
    const std::int64_t batch = saved.q.size(0), heads = saved.q.size(2), key_heads = saved.k.size(2);
    const std::int64_t group = key_heads == 0 ? 1 : heads / key_heads;
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const Readable d_lse = contiguous(ctx, d_out.lse);
    const Writable d_q(ctx, into.q, dtype_of<A>), d_k(ctx, into.k, dtype_of<A>),
        d_v(ctx, into.v, dtype_of<A>);
    const Tensor deltas = empty_like(ctx, saved.lse);
    const BiasGradients<A> bias_gradients(ctx, options.scores, into);
    // Heads that add to the same bias gradient sums form one task.
    const auto groups = bias_gradients.groups(batch, key_heads, 1);
    const std::int64_t batch_groups = ceil_div(batch, groups.batches);
    const std::int64_t head_groups = ceil_div(key_heads, groups.heads);
    const TaskScratch scratch(ctx, batch_groups * head_groups, TaskMemory<A>::bytes);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o}) x->load(ctx);
    if (d_out.lse.defined()) d_lse.load(ctx);
    scratch.clear();
    bias_gradients.clear(ctx);

    const auto query_head = [&](std::int64_t b, std::int64_t h, const BiasGradientsOfHead<A>* biases) {
        return QueryHead<T>{.rule = options.scores.rule_of<A>(b, h),
                            .q = matrix_of<T>(q.tensor(), b, h),
                            .o = matrix_of<T>(o.tensor(), b, h),
                            .d_o = matrix_of<T>(d_o.tensor(), b, h),
                            .lse = row_numbers_of<A>(saved.lse, b, h),
                            .lse_remainder = row_numbers_of<A>(saved.lse_remainder, b, h),
                            .d_lse = row_numbers_of<A>(d_lse.tensor(), b, h),
                            .row_max = row_numbers_of<A>(saved.row_max, b, h),
                            .row_sum = row_numbers_of<A>(saved.row_sum, b, h),
                            .delta = row_numbers_of<A>(deltas, b, h),
                            .d_q = matrix_of<A>(d_q.tensor(), b, h),
                            .bias_gradients = biases};
    };
    const auto process = [&](std::int64_t b, std::int64_t key_head, TaskMemory<A>& memory) {
        std::vector<BiasGradientsOfHead<A>> biases;
        std::vector<QueryHead<T>> query_heads;
        biases.reserve(static_cast<std::size_t>(group));
        for (std::int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
            biases.push_back(bias_gradients.for_head(b, h));
            query_heads.push_back(query_head(b, h, bias_gradients.any() ? &biases.back() : nullptr));
        }
        const BackwardHead<T> all{.geometry = tiled_geometry(options, saved.q, saved.v),
                                  .k = matrix_of<T>(k.tensor(), b, key_head),
                                  .v = matrix_of<T>(v.tensor(), b, key_head),
                                  .d_k = matrix_of<A>(d_k.tensor(), b, key_head),
                                  .d_v = matrix_of<A>(d_v.tensor(), b, key_head),
                                  .query_heads = query_heads};
        algorithm(all, memory);
    };
    parallel_for(ctx, batch_groups * head_groups, [&](std::int64_t task) {
        const std::int64_t first_batch = task / head_groups * groups.batches;
        const std::int64_t first_head = task % head_groups * groups.heads;
        const TaskScratch::Piece piece(scratch);
        TaskMemory<A> memory(piece.data());
        for (std::int64_t b = first_batch; b < std::min(first_batch + groups.batches, batch); ++b)
            for (std::int64_t h = first_head; h < std::min(first_head + groups.heads, key_heads); ++h)
                process(b, h, memory);
    });
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    bias_gradients.store(ctx);
    if (!into.sink.defined()) return;
    const std::int64_t queries = saved.q.size(1);
    parallel_for(ctx, heads, [&](std::int64_t head) {
        double sum = 0;
        for (std::int64_t b = 0; b < batch; ++b) {
            const RowLse<A> lse = row_lse_of<A>(saved, b, head);
            add_sink_gradient(options.scores.rule_of<double>(b, head).sink, queries, {lse.lse, lse.remainder},
                              deltas.data<A>() + (b * heads + head) * queries, sum);
        }
        into.sink.data<float>()[head * into.sink.stride(0)] = static_cast<float>(sum);
    });
}

}  // namespace

void memory_efficient_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    Saved all = saved;
    all.row_max = empty_like(ctx, saved.lse);
    all.row_sum = empty_like(ctx, saved.lse);
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        tiled_forward<T>(ctx, options, all, [](const ForwardHead<T>& head, auto& memory) {
            tiled::memory_efficient_forward(head, memory_efficient_blocks, memory.block, memory.fast);
        });
    });
}

void memory_efficient_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                               const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        tiled_backward<T>(ctx, options, saved, d_out, into, [](const BackwardHead<T>& heads, auto& memory) {
            tiled::memory_efficient_backward(heads, memory_efficient_blocks, memory.block, memory.fast);
        });
    });
}

void flash1_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        using A = Accumulator<T>;
        tiled_forward<T>(ctx, options, saved, [](const ForwardHead<T>& head, auto& memory) {
            const BlockSizes blocks =
                flash1_blocks<A, FlashForwardTiles<A>>(head.geometry, memory.fast.capacity());
            tiled::flash1_forward(head, blocks, memory.fast);
        });
    });
}

void flash1_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                     const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        using A = Accumulator<T>;
        const bool needs_deltas = into.sink.defined();
        tiled_backward<T>(ctx, options, saved, d_out, into, [&](const BackwardHead<T>& heads, auto& memory) {
            const BlockSizes blocks =
                flash1_blocks<A, Flash1BackwardTiles<A>>(heads.geometry, memory.fast.capacity());
            tiled::flash1_backward(heads, blocks, memory.fast);
            if (!needs_deltas) return;
            for (const QueryHead<T>& head : heads.query_heads)
                store_deltas(heads.geometry, head, memory.fast);
        });
    });
}

}  // namespace gradtile::attention::cpu

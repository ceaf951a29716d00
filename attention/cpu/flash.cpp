// The driver of FlashAttention-2 on the CPU: copies tensors whose layout kernels cannot read, divides the
// work into tasks, orders the tasks, and keeps the additions to dQ in a fixed order. The kernels
// (attention/cpu/kernels.h) contain the mathematics of a block.
#include <atomic>
#include <limits>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <gradtile/attention/cpu/bias_gradients.h>
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/attention/cpu/task_scratch.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {

void wait_for_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block,
                      std::int64_t key_block) {
    const std::atomic_ref<std::int32_t> counter(turns.counters[head * turns.blocks_per_head + row_block]);
    // The K/V block that has the turn started before this one, so the wait is at most one block's work. Yield
    // early, because there may be more threads than cores.
    constexpr int spins = 2000;
    for (int i = 0; counter.load(std::memory_order_acquire) != key_block; ++i) {
        if (i >= spins) std::this_thread::yield();
#if defined(__x86_64__)
        _mm_pause();
#endif
    }
}

void pass_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block, std::int64_t key_block) {
    std::atomic_ref<std::int32_t> counter(turns.counters[head * turns.blocks_per_head + row_block]);
    counter.store(static_cast<std::int32_t>(key_block + 1), std::memory_order_release);
}

namespace {

/// The rows of one (batch, head) of a [B, S, H, D] tensor.
template <class T, class E>
StridedRows<E> head_rows(const Tensor& x, std::int64_t batch, std::int64_t head) {
    return {x.data<T>() + batch * x.stride(0) + head * x.stride(2), x.stride(1)};
}

Geometry geometry_of(const ResolvedOptions& options, const Tensor& q, const Tensor& v) {
    return {.d_qk = q.size(3), .d_v = v.size(3), .scale = options.scale, .mask = options.mask};
}

/// The rules of all heads, [batch * heads]; empty when every score is its product.
template <class A>
std::vector<ScoreRule<A>> rules_of(const ScoreOptions& scores, std::int64_t batch, std::int64_t heads) {
    std::vector<ScoreRule<A>> rules;
    if (scores.plain) return rules;
    for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t h = 0; h < heads; ++h) rules.push_back(scores.rule_of<A>(b, h));
    return rules;
}

template <class T>
void forward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                   const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& o_out,
                   const Tensor& lse) {
    const Geometry geometry = geometry_of(options, q_in, v_in);
    const std::int64_t batch = q_in.size(0), queries = q_in.size(1), heads = q_in.size(2);
    const std::int64_t group = k_in.size(2) == 0 ? 1 : heads / k_in.size(2);
    const std::int64_t block = kernels.blocks(geometry).forward_rows;
    const std::int64_t row_blocks = ceil_div(queries, block), tasks = batch * heads * row_blocks;
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, q_in.dtype());
    const TaskScratch scratch(ctx, tasks, kernels.forward_scratch_bytes(geometry));
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    scratch.clear();
    const auto rules = rules_of<Accumulator<T>>(options.scores, batch, heads);

    parallel_for(ctx, tasks, [&](std::int64_t index) {
        const std::int64_t batch_head = index / row_blocks, b = batch_head / heads, h = batch_head % heads;
        // From the last rows to the first: under a causal mask the last rows take longest, and long tasks
        // should start first.
        const std::int64_t begin = (row_blocks - 1 - index % row_blocks) * block;
        const TaskScratch::Piece piece(scratch);
        kernels.forward({.geometry = &geometry,
                         .q = head_rows<T, const T>(q.tensor(), b, h),
                         .k = head_rows<T, const T>(k.tensor(), b, h / group),
                         .v = head_rows<T, const T>(v.tensor(), b, h / group),
                         .o = head_rows<T, T>(o.tensor(), b, h),
                         .lse = lse.data<Accumulator<T>>() + batch_head * queries,
                         .rows = {begin, std::min(begin + block, queries)},
                         .rule = rules.empty() ? nullptr : &rules[static_cast<std::size_t>(batch_head)]},
                        piece.data());
    });
    o.store(ctx);
}

/// Dot product in 16 partial sums, which the compiler keeps in vector registers.
template <class A, class T>
A dot(const T* a, const T* b, std::int64_t n) {
    constexpr std::int64_t lanes = 16;
    A sums[lanes] = {};
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::int64_t lane = 0; lane < lanes; ++lane)
            sums[lane] += convert<A>(a[i + lane]) * convert<A>(b[i + lane]);
    for (std::int64_t lane = 0; i + lane < n; ++lane)
        sums[lane] += convert<A>(a[i + lane]) * convert<A>(b[i + lane]);
    A sum = 0;
    for (const A lane : sums) sum += lane;
    return sum;
}

template <class T>
void backward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                    const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    using A = Accumulator<T>;
    const Geometry geometry = geometry_of(options, saved.q, saved.v);
    const Mask& mask = geometry.mask;
    const std::int64_t batch = saved.q.size(0), queries = saved.q.size(1), heads = saved.q.size(2);
    const std::int64_t keys = saved.k.size(1), key_heads = saved.k.size(2);
    const std::int64_t group = key_heads == 0 ? 1 : heads / key_heads;
    const Blocks blocks = kernels.blocks(geometry);
    const std::int64_t row_blocks = ceil_div(queries, blocks.backward_rows);
    const std::int64_t key_blocks = ceil_div(keys, blocks.backward_keys);

    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const Readable d_lse(ctx, d_out.lse.defined() ? d_out.lse : saved.lse,
                         /*direct=*/!d_out.lse.defined() || d_out.lse.is_contiguous());
    const Writable d_q(ctx, into.q, dtype_of<A>), d_k(ctx, into.k, dtype_of<T>),
        d_v(ctx, into.v, dtype_of<T>);
    const Tensor lse = empty_like(ctx, saved.lse), delta = empty_like(ctx, saved.lse);
    const Tensor turns = empty(ctx, {batch, heads, row_blocks}, DType::i32);
    const BiasGradients<A> bias_gradients(ctx, options.scores, into);
    // Tasks that add to the same sums of a bias's gradient become one.
    const auto groups = bias_gradients.groups(batch, key_heads, key_blocks);
    const std::int64_t batch_groups = ceil_div(batch, groups.batches);
    const std::int64_t head_groups = ceil_div(key_heads, groups.heads);
    const std::int64_t tasks = ceil_div(key_blocks, groups.key_blocks) * batch_groups * head_groups;
    const TaskScratch scratch(ctx, tasks, kernels.backward_scratch_bytes(geometry));
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    scratch.clear();
    bias_gradients.clear(ctx);
    const auto rules = rules_of<A>(options.scores, batch, heads);
    std::vector<BiasGradientsOfHead<A>> gradients_of_heads;
    if (bias_gradients.any())
        for (std::int64_t b = 0; b < batch; ++b)
            for (std::int64_t h = 0; h < heads; ++h)
                gradients_of_heads.push_back(bias_gradients.of_head(b, h));

    // For each row: D = rowsum(dO * O) - dLSE, and LSE with +inf if the row sees no key. For each row block:
    // the K/V block that is first to add to dQ, or dQ = 0 if there is none.
    parallel_for(ctx, batch * heads * row_blocks, [&](std::int64_t index) {
        const std::int64_t batch_head = index / row_blocks, b = batch_head / heads, h = batch_head % heads;
        const std::int64_t begin = index % row_blocks * blocks.backward_rows;
        const IndexRange rows{begin, std::min(begin + blocks.backward_rows, queries)};
        const StridedRows o_rows = head_rows<T, const T>(o.tensor(), b, h);
        const StridedRows d_o_rows = head_rows<T, const T>(d_o.tensor(), b, h);
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
            const std::int64_t row = batch_head * queries + i;
            const A row_lse = saved.lse.data<A>()[row];
            const bool sees_no_key = row_lse == -std::numeric_limits<A>::infinity();
            lse.data<A>()[row] = sees_no_key ? std::numeric_limits<A>::infinity() : row_lse;
            A d = dot<A>(d_o_rows.row(i), o_rows.row(i), geometry.d_v);
            if (d_out.lse.defined() && !sees_no_key) d -= d_lse.tensor().data<A>()[row];
            delta.data<A>()[row] = d;
        }
        const IndexRange visible = mask.visible_keys(rows);
        turns.data<std::int32_t>()[index] = static_cast<std::int32_t>(visible.begin / blocks.backward_keys);
        if (visible.end > visible.begin) return;
        const StridedRows d_q_rows = head_rows<A, A>(d_q.tensor(), b, h);
        for (std::int64_t i = rows.begin; i < rows.end; ++i)
            std::fill_n(d_q_rows.row(i), geometry.d_qk, A(0));
    });

    const auto process = [&](std::int64_t key_block, std::int64_t b, std::int64_t key_head,
                             std::byte* memory) {
        const std::int64_t head = key_head * group, first_head = b * heads + head;
        const std::int64_t begin = key_block * blocks.backward_keys;
        const auto of_group = [&](const auto& list) {
            return list.empty() ? nullptr : list.data() + first_head;
        };
        kernels.backward({.geometry = &geometry,
                          .k = head_rows<T, const T>(k.tensor(), b, key_head),
                          .v = head_rows<T, const T>(v.tensor(), b, key_head),
                          .d_k = head_rows<T, T>(d_k.tensor(), b, key_head),
                          .d_v = head_rows<T, T>(d_v.tensor(), b, key_head),
                          .keys = {begin, std::min(begin + blocks.backward_keys, keys)},
                          .key_block = key_block,
                          .group = group,
                          .q = head_rows<T, const T>(q.tensor(), b, head),
                          .d_o = head_rows<T, const T>(d_o.tensor(), b, head),
                          .d_q = head_rows<A, A>(d_q.tensor(), b, head),
                          .q_head_stride = q.tensor().stride(2),
                          .d_o_head_stride = d_o.tensor().stride(2),
                          .d_q_head_stride = d_q.tensor().stride(2),
                          .lse = lse.data<A>() + first_head * queries,
                          .delta = delta.data<A>() + first_head * queries,
                          .turns = {turns.data<std::int32_t>() + first_head * row_blocks, row_blocks},
                          .rules = of_group(rules),
                          .bias_gradients = of_group(gradients_of_heads)},
                         memory);
    };
    // The K/V block is the slowest index. Neighbouring tasks then belong to different heads and rarely wait
    // for each other. Tasks of the same head go through its row blocks in the same order, one behind the
    // other. A task waits only for tasks with lower numbers, which have started.
    parallel_for(ctx, tasks, [&](std::int64_t index) {
        const std::int64_t first_block = index / (batch_groups * head_groups) * groups.key_blocks;
        const std::int64_t first_batch = index / head_groups % batch_groups * groups.batches;
        const std::int64_t first_head = index % head_groups * groups.heads;
        const TaskScratch::Piece piece(scratch);
        for (std::int64_t block = first_block; block < std::min(first_block + groups.key_blocks, key_blocks);
             ++block)
            for (std::int64_t b = first_batch; b < std::min(first_batch + groups.batches, batch); ++b)
                for (std::int64_t h = first_head; h < std::min(first_head + groups.heads, key_heads); ++h)
                    process(block, b, h, piece.data());
    });
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    bias_gradients.store(ctx);
    if (into.sink.defined()) store_sink_gradient<A>(ctx, options.scores, saved.lse, delta, into.sink);
}

}  // namespace

void flash_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                   const Tensor& v, const Tensor& o, const Tensor& lse) {
    visit_floating(q.dtype(), [&]<class T>(TypeTag<T>) {
        forward_typed<T>(ctx, chosen_kernels<T>(), options, q, k, v, o, lse);
    });
}

void flash_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        backward_typed<T>(ctx, chosen_kernels<T>(), options, saved, d_out, into);
    });
}

std::string explain_flash_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                  const Tensor&, const Tensor&) {
    std::string kernels;
    visit_floating(q.dtype(), [&]<class T>(TypeTag<T>) { kernels = chosen_kernels<T>().name; });
    return concat(kernels, " kernels of the CPU on ", ctx.threads().size(), " threads",
                  options.scores.plain ? "" : ", with score rules");
}

}  // namespace gradtile::attention::cpu

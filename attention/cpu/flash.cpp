// The FlashAttention-2 driver for the CPU: copies tensors whose layout kernels cannot read, divides the work
// into tasks, orders the tasks, and keeps the additions to dQ in a fixed order. The kernels
// (attention/cpu/kernels.h) contain the mathematics for one block.
#include <algorithm>
#include <atomic>
#include <limits>
#include <numbers>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <gradtile/attention/cpu/bias_gradients.h>
#include <gradtile/attention/cpu/few_queries.h>
#include <gradtile/attention/cpu/key_parts.h>
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/cpu/task_scratch.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {

void wait_for_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block,
                      std::int64_t key_block) {
    const std::atomic_ref<std::int32_t> counter(turns.counters[head * turns.blocks_per_head + row_block]);
    // The task of the K/V block whose turn it is started before this task, so the wait takes at most as long
    // as one block. The thread yields early, because there may be more threads than cores.
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

/// Returns one head's rows in a [B, S, H, D] tensor, from row `first` of a batch on.
template <class T, class E>
StridedRows<E> head_rows(const Tensor& x, std::int64_t batch, std::int64_t first, std::int64_t head) {
    return {x.data<T>() + batch * x.stride(0) + first * x.stride(1) + head * x.stride(2), x.stride(1)};
}
/// Returns a sequence's per-row numbers in one head of a [B, H, S] tensor, for example the LSE.
template <class A>
A* row_numbers(const Tensor& x, const Sequence& s, std::int64_t head) {
    return x.data<A>() + s.batch * x.stride(0) + head * x.stride(1) + s.first_row * x.stride(2);
}

Geometry geometry_of(const ResolvedOptions& options, const Mask& mask, const Tensor& q, const Tensor& v) {
    return {.d_qk = q.size(3), .d_v = v.size(3), .scale = options.scale, .mask = mask};
}
std::vector<Geometry> geometries_of(const ResolvedOptions& options, const std::vector<Sequence>& sequences,
                                    const Tensor& q, const Tensor& v) {
    std::vector<Geometry> geometries;
    for (const Sequence& s : sequences) geometries.push_back(geometry_of(options, s.mask, q, v));
    return geometries;
}

/// Returns the score rules for all heads, [sequences, heads]. The list is empty if the call sets no option
/// that changes scores.
template <class A>
std::vector<ScoreRule<A>> rules_of(const ResolvedOptions& options, const std::vector<Sequence>& sequences,
                                   std::int64_t heads) {
    std::vector<ScoreRule<A>> rules;
    ScoreOptions scores = options.scores;
    if (scores.plain) return rules;
    for (const Sequence& s : sequences) {
        scores.offset = s.mask.offset;
        for (std::int64_t h = 0; h < heads; ++h) rules.push_back(scores.rule_of<A>(s.index, h));
    }
    return rules;
}

/// Numbers all sequences' tasks consecutively, so that one parallel loop runs them and no thread waits when a
/// sequence ends.
class TaskNumbers {
  public:
    void add_sequence(std::int64_t tasks) { ends_.push_back(count() + tasks); }
    std::int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
    /// Returns the number of a sequence's first task.
    std::int64_t first(std::size_t sequence) const { return sequence == 0 ? 0 : ends_[sequence - 1]; }
    std::size_t sequence_of(std::int64_t task) const {
        return static_cast<std::size_t>(std::ranges::upper_bound(ends_, task) - ends_.begin());
    }

  private:
    std::vector<std::int64_t> ends_;
};

/// Returns how many row blocks all heads have together, for a call without packed sequences.
std::int64_t row_tasks_of_batch(const Tensor& q, const Blocks& blocks) {
    return q.size(0) * q.size(2) * ceil_div(q.size(1), blocks.forward_rows);
}
/// Packed sequences' keys are not divided, because the lengths are not known when scratch memory is
/// allocated.
KeyParts key_parts_of(const ResolvedOptions& options, const Tensor& q, const Blocks& blocks) {
    return options.packed ? KeyParts() : divide_keys(options.mask, row_tasks_of_batch(q, blocks));
}

/// Returns how many tasks may run at the same time: `of_batch` if the sequences are not packed. For packed
/// sequences it is the thread count, because a dry run does not know the lengths.
std::int64_t concurrent_tasks(const Context& ctx, const ResolvedOptions& options, std::int64_t of_batch) {
    return options.packed ? ctx.threads().size() : of_batch;
}

template <class T>
void forward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                   const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v;
    using A = Accumulator<T>;
    const Geometry whole = geometry_of(options, options.mask, q_in, v_in);
    const std::int64_t heads = q_in.size(2), group = k_in.size(2) == 0 ? 1 : heads / k_in.size(2);
    const KeyParts parts = key_parts_of(options, q_in, kernels.blocks(whole));
    const std::int64_t of_batch = row_tasks_of_batch(q_in, kernels.blocks(whole)) * parts.count;
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, saved.o, q_in.dtype());
    const TaskScratch scratch(ctx, concurrent_tasks(ctx, options, of_batch),
                              kernels.forward_scratch_bytes(whole));
    const PartResults<A> part_results(ctx, parts.divided() ? parts.count : 0, q_in, v_in.size(3));
    if (ctx.is_planning()) return;
    const std::vector<Sequence> sequences = sequences_of(options, q_in);
    const auto geometries = geometries_of(options, sequences, q_in, v_in);
    auto rules = rules_of<A>(options, sequences, heads);
    if (parts.divided())  // merge_key_parts() adds the sink
        for (ScoreRule<A>& rule : rules) rule.sink = -std::numeric_limits<A>::infinity();
    TaskNumbers tasks;
    for (const Geometry& g : geometries)
        tasks.add_sequence(heads * ceil_div(g.mask.queries, kernels.blocks(g).forward_rows) * parts.count);
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    fill(ctx, rows_after_last(options.packed, o.tensor()), 0);
    clear_lse_after_last(ctx, options.packed, saved);
    scratch.clear();

    parallel_for(ctx, tasks.count(), [&](std::int64_t task) {
        const std::size_t at = tasks.sequence_of(task);
        const Sequence& s = sequences[at];
        const Geometry& geometry = geometries[at];
        const std::int64_t block = kernels.blocks(geometry).forward_rows;
        const std::int64_t row_blocks = ceil_div(s.mask.queries, block);
        const std::int64_t index = (task - tasks.first(at)) / parts.count, h = index / row_blocks;
        const std::int64_t part = (task - tasks.first(at)) % parts.count;
        // Tasks go from the last rows to the first: with a causal mask the last rows take longest, and long
        // tasks should start first.
        const std::int64_t begin = (row_blocks - 1 - index % row_blocks) * block;
        const TaskScratch::Piece piece(scratch);
        ForwardTask<T> block_task{
            .geometry = &geometry,
            .q = head_rows<T, const T>(q.tensor(), s.batch, s.first_row, h),
            .k = head_rows<T, const T>(k.tensor(), s.batch, s.first_key, h / group),
            .v = head_rows<T, const T>(v.tensor(), s.batch, s.first_key, h / group),
            .o = head_rows<T, T>(o.tensor(), s.batch, s.first_row, h),
            .lse = row_lse_of<A>(saved, s.batch, h, s.first_row),
            .rows = {begin, std::min(begin + block, s.mask.queries)},
            .rule = rules.empty()
                        ? nullptr
                        : &rules[at * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h)]};
        if (parts.divided()) {
            block_task.part = parts.part(part);
            block_task.part_o = part_results.o(part, s.batch, h);
            block_task.part_softmax = part_results.softmax(part, s.batch, h);
        }
        kernels.forward(block_task, piece.data());
    });
    if (parts.divided()) merge_key_parts<T>(ctx, parts, part_results, options.scores, saved, o.tensor());
    o.store(ctx);
}

/// Converts some rows' LSE to other units. The remainders, which may be null, take over the conversion
/// errors. A row that sees no key has LSE = -inf, which becomes +inf. The loop has no branches, so that the
/// compiler vectorises it.
template <class A>
void convert_lse(std::int64_t rows, double units, const A* lse, const A* remainder, const RowLse<A>& to) {
    for (std::int64_t i = 0; i < rows; ++i) {
        const double whole = units * static_cast<double>(lse[i]),
                     rest = remainder == nullptr ? 0.0 : units * static_cast<double>(remainder[i]);
        const A rounded = static_cast<A>(whole + rest);
        const double lost = (whole - static_cast<double>(rounded)) + rest;
        to.lse[i] = lse[i] == -std::numeric_limits<A>::infinity() ? -lse[i] : rounded;
        to.remainder[i] = lost - lost == 0 ? static_cast<A>(lost) : A(0);  // 0 if it is not finite
    }
}

/// Computes a dot product in 16 partial sums, so that the compiler can keep the sums in vector registers.
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

/// A key block of one sequence.
struct KeyBlock {
    std::size_t sequence;
    std::int64_t block;
};
/// All sequences' key blocks, in the order in which they start: the first blocks of all sequences, then the
/// second blocks, and so on. Blocks with neighbouring numbers then belong to different sequences and rarely
/// wait for each other. One task processes one block group.
struct KeyBlockOrder {
    std::vector<KeyBlock> blocks;
    std::vector<IndexRange> groups;
};
KeyBlockOrder order_of_key_blocks(const std::vector<std::int64_t>& blocks_of_sequences,
                                  std::int64_t blocks_of_group, std::int64_t sequences_of_group) {
    KeyBlockOrder order;
    const auto sequences = std::ssize(blocks_of_sequences);
    const std::int64_t most = sequences == 0 ? 0 : std::ranges::max(blocks_of_sequences);
    for (std::int64_t first_block = 0; first_block < most; first_block += blocks_of_group)
        for (std::int64_t first = 0; first < sequences; first += sequences_of_group) {
            const std::int64_t begin = std::ssize(order.blocks);
            for (std::int64_t block = first_block; block < first_block + blocks_of_group; ++block)
                for (std::int64_t s = first; s < std::min(first + sequences_of_group, sequences); ++s)
                    if (const auto at = static_cast<std::size_t>(s); block < blocks_of_sequences[at])
                        order.blocks.push_back({at, block});
            if (std::ssize(order.blocks) > begin) order.groups.push_back({begin, std::ssize(order.blocks)});
        }
    return order;
}

template <class T>
void backward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                    const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    using A = Accumulator<T>;
    const Geometry whole = geometry_of(options, options.mask, saved.q, saved.v);
    const std::int64_t batch = saved.q.size(0), queries = saved.q.size(1), heads = saved.q.size(2);
    const std::int64_t keys = saved.k.size(1), key_heads = saved.k.size(2);
    const std::int64_t group = key_heads == 0 ? 1 : heads / key_heads;
    const Blocks blocks = kernels.blocks(whole);
    const std::int64_t key_blocks = ceil_div(keys, blocks.backward_keys);

    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const Readable d_lse(ctx, d_out.lse.defined() ? d_out.lse : saved.lse,
                         /*direct=*/!d_out.lse.defined() || d_out.lse.is_contiguous());
    const Writable d_q(ctx, into.q, dtype_of<A>), d_k(ctx, into.k, dtype_of<T>),
        d_v(ctx, into.v, dtype_of<T>);
    // These tensors hold a matrix [heads, rows] for each sequence, one sequence after the other.
    const Tensor lse = empty_like(ctx, saved.lse), lse_remainder = empty_like(ctx, saved.lse),
                 delta = empty_like(ctx, saved.lse);
    // Each packed sequence's last row block may be incomplete.
    const std::int64_t row_blocks = batch * ceil_div(queries, blocks.backward_rows) + options.packed.count;
    const Tensor turns = empty(ctx, {heads, row_blocks}, DType::i32);
    const BiasGradients<A> bias_gradients(ctx, options.scores, into);
    // If several tasks add to the same bias gradient sums, they become one task.
    const auto groups = bias_gradients.groups(batch, key_heads, key_blocks);
    const std::int64_t head_groups = ceil_div(key_heads, groups.heads);
    const std::int64_t of_batch =
        ceil_div(key_blocks, groups.key_blocks) * ceil_div(batch, groups.batches) * head_groups;
    const FewQueriesProducts<T> products(options, whole, saved.q, saved.k, blocks.backward_keys);
    const std::size_t kernel_bytes = ceil_div(kernels.backward_scratch_bytes(whole), std::size_t{64}) * 64;
    const TaskScratch scratch(ctx, concurrent_tasks(ctx, options, of_batch),
                              kernel_bytes + products.scratch_bytes());
    if (ctx.is_planning()) return;
    const std::vector<Sequence> sequences = sequences_of(options, saved.q);
    const auto geometries = geometries_of(options, sequences, saved.q, saved.v);
    const auto rules = rules_of<A>(options, sequences, heads);
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    fill(ctx, rows_after_last(options.packed, d_q.tensor()), 0);
    fill(ctx, keys_after_last(options.packed, d_k.tensor()), 0);
    fill(ctx, keys_after_last(options.packed, d_v.tensor()), 0);
    scratch.clear();
    bias_gradients.clear(ctx);
    std::vector<BiasGradientsOfHead<A>> gradients_of_heads;
    if (bias_gradients.any())
        for (const Sequence& s : sequences)
            for (std::int64_t h = 0; h < heads; ++h)
                gradients_of_heads.push_back(bias_gradients.for_head(s.index, h));

    TaskNumbers row_tasks;  // [heads, row blocks] for each sequence
    std::vector<std::int64_t> key_blocks_of_sequences;
    for (const Geometry& g : geometries) {
        row_tasks.add_sequence(heads * ceil_div(g.mask.queries, blocks.backward_rows));
        key_blocks_of_sequences.push_back(ceil_div(g.mask.keys, kernels.blocks(g).backward_keys));
    }
    /// Returns the index, in `lse` and `delta`, of the first row of a sequence's head.
    const auto numbers_at = [&](const Sequence& s, std::int64_t head) {
        return heads * (s.batch * queries + s.first_row) + head * s.mask.queries;
    };

    const double lse_units = kernels.scores_in_base_2 && rules.empty() ? std::numbers::log2e_v<double> : 1.0;
    // For each row, this loop computes D = rowsum(dO * O) - dLSE, converts the LSE to the kernels' score
    // units, and replaces LSE = -inf by +inf if the row sees no key. For each row block, the loop stores the
    // index of the K/V block that adds to dQ first. If no K/V block adds to dQ, the loop sets dQ = 0.
    parallel_for(ctx, row_tasks.count(), [&](std::int64_t task) {
        const std::size_t at = row_tasks.sequence_of(task);
        const Sequence& s = sequences[at];
        const Geometry& geometry = geometries[at];
        const std::int64_t blocks_per_head = ceil_div(s.mask.queries, blocks.backward_rows);
        const std::int64_t index = task - row_tasks.first(at), h = index / blocks_per_head;
        const std::int64_t begin = index % blocks_per_head * blocks.backward_rows;
        const IndexRange rows{begin, std::min(begin + blocks.backward_rows, s.mask.queries)};
        const StridedRows o_rows = head_rows<T, const T>(o.tensor(), s.batch, s.first_row, h);
        const StridedRows d_o_rows = head_rows<T, const T>(d_o.tensor(), s.batch, s.first_row, h);
        const A* const given_lse = row_numbers<A>(saved.lse, s, h);
        A* const delta_of_head = delta.data<A>() + numbers_at(s, h);
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
            const bool sees_no_key = given_lse[i] == -std::numeric_limits<A>::infinity();
            A d = dot<A>(d_o_rows.row(i), o_rows.row(i), geometry.d_v);
            if (d_out.lse.defined() && !sees_no_key) d -= row_numbers<A>(d_lse.tensor(), s, h)[i];
            delta_of_head[i] = d;
        }
        convert_lse<A>(
            rows.end - rows.begin, lse_units, given_lse + begin,
            saved.lse_remainder.defined() ? row_numbers<A>(saved.lse_remainder, s, h) + begin : nullptr,
            {lse.data<A>() + numbers_at(s, h) + begin, lse_remainder.data<A>() + numbers_at(s, h) + begin});
        const IndexRange visible = s.mask.visible_keys(rows);
        turns.data<std::int32_t>()[task] =
            static_cast<std::int32_t>(visible.begin / kernels.blocks(geometry).backward_keys);
        if (visible.end > visible.begin) return;
        const StridedRows d_q_rows = head_rows<A, A>(d_q.tensor(), s.batch, s.first_row, h);
        for (std::int64_t i = rows.begin; i < rows.end; ++i)
            std::fill_n(d_q_rows.row(i), geometry.d_qk, A(0));
    });

    const auto process = [&](const KeyBlock& keys_of_task, std::int64_t key_head, std::byte* memory) {
        const std::size_t at = keys_of_task.sequence;
        const Sequence& s = sequences[at];
        const Geometry& geometry = geometries[at];
        const std::int64_t head = key_head * group;
        const std::int64_t backward_keys = kernels.blocks(geometry).backward_keys;
        const std::int64_t begin = keys_of_task.block * backward_keys;
        const std::int64_t blocks_per_head = ceil_div(s.mask.queries, blocks.backward_rows);
        const auto slice_of_group = [&](const auto& list) {
            return list.empty() ? nullptr : list.data() + static_cast<std::int64_t>(at) * heads + head;
        };
        BackwardTask<T> task{
            .geometry = &geometry,
            .k = head_rows<T, const T>(k.tensor(), s.batch, s.first_key, key_head),
            .v = head_rows<T, const T>(v.tensor(), s.batch, s.first_key, key_head),
            .d_k = head_rows<T, T>(d_k.tensor(), s.batch, s.first_key, key_head),
            .d_v = head_rows<T, T>(d_v.tensor(), s.batch, s.first_key, key_head),
            .keys = {begin, std::min(begin + backward_keys, s.mask.keys)},
            .key_block = keys_of_task.block,
            .group = group,
            .q = head_rows<T, const T>(q.tensor(), s.batch, s.first_row, head),
            .d_o = head_rows<T, const T>(d_o.tensor(), s.batch, s.first_row, head),
            .d_q = head_rows<A, A>(d_q.tensor(), s.batch, s.first_row, head),
            .q_head_stride = q.tensor().stride(2),
            .d_o_head_stride = d_o.tensor().stride(2),
            .d_q_head_stride = d_q.tensor().stride(2),
            .lse = lse.data<A>() + numbers_at(s, head),
            .lse_remainder = lse_remainder.data<A>() + numbers_at(s, head),
            .delta = delta.data<A>() + numbers_at(s, head),
            .turns = {turns.data<std::int32_t>() + row_tasks.first(at) + head * blocks_per_head,
                      blocks_per_head},
            .rules = slice_of_group(rules),
            .bias_gradients = slice_of_group(gradients_of_heads)};
        task.products = products.compute(task, memory + kernel_bytes);
        kernels.backward(task, memory);
    };
    // All tasks of a head process the head's row blocks in the same order. A task waits only for tasks with
    // lower numbers. Tasks with lower numbers have already started, so no task waits forever.
    const KeyBlockOrder order =
        order_of_key_blocks(key_blocks_of_sequences, groups.key_blocks, groups.batches);
    parallel_for(ctx, std::ssize(order.groups) * head_groups, [&](std::int64_t task) {
        const IndexRange of_task = order.groups[static_cast<std::size_t>(task / head_groups)];
        const std::int64_t first_head = task % head_groups * groups.heads;
        const TaskScratch::Piece piece(scratch);
        for (std::int64_t i = of_task.begin; i < of_task.end; ++i)
            for (std::int64_t h = first_head; h < std::min(first_head + groups.heads, key_heads); ++h)
                process(order.blocks[static_cast<std::size_t>(i)], h, piece.data());
    });
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    bias_gradients.store(ctx);
    if (!into.sink.defined()) return;
    parallel_for(ctx, heads, [&](std::int64_t h) {
        const double sink = options.scores.rule_of<double>(0, h).sink;
        double sum = 0;
        for (const Sequence& s : sequences)
            add_sink_gradient(sink, s.mask.queries,
                              {lse.data<A>() + numbers_at(s, h), lse_remainder.data<A>() + numbers_at(s, h)},
                              delta.data<A>() + numbers_at(s, h), sum);
        into.sink.data<float>()[h * into.sink.stride(0)] = static_cast<float>(sum);
    });
}

}  // namespace

void flash_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        if constexpr (has_few_queries_kernels<T>)
            if (const FewQueriesPlan plan = few_queries_plan<T>(options, saved.q, saved.k))
                return few_queries_forward<T>(ctx, plan, options, saved);
        forward_typed<T>(ctx, chosen_kernels<T>(), options, saved);
    });
}

void flash_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                    const OutputGradients& d_out, const Gradients& into) {
    visit_floating(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        backward_typed<T>(ctx, chosen_kernels<T>(), options, saved, d_out, into);
    });
}

std::string explain_flash_forward(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                                  const Tensor& k, const Tensor& v) {
    std::string kernels;
    KeyParts parts;
    visit_floating(q.dtype(), [&]<class T>(TypeTag<T>) {
        if constexpr (has_few_queries_kernels<T>)
            if (const FewQueriesPlan plan = few_queries_plan<T>(options, q, k)) {
                kernels = explain<T>(plan, q);
                parts = plan.parts;
                return;
            }
        kernels = concat(chosen_kernels<T>().name, " kernels");
        parts =
            key_parts_of(options, q, chosen_kernels<T>().blocks(geometry_of(options, options.mask, q, v)));
    });
    return concat(kernels, " of the CPU on ", ctx.threads().size(), " threads",
                  options.scores.plain ? "" : ", with score rules",
                  parts.divided()
                      ? concat(", keys in ", parts.count, " parts of ", parts.length, ", merged by their LSE")
                      : "");
}

}  // namespace gradtile::attention::cpu

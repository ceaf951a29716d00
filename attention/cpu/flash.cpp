// The FlashAttention-2 driver for the CPU: copies tensors whose layout kernels cannot read, divides the work
// into tasks, orders the tasks, and keeps the additions to dQ in a fixed order. The kernels
// (attention/cpu/kernels.h) contain the mathematics for one block.
#include <algorithm>
#include <limits>
#include <numbers>

#include <gradtile/attention/cpu/bias_gradients.h>
#include <gradtile/attention/cpu/call_ranges.h>
#include <gradtile/attention/cpu/dot.h>
#include <gradtile/attention/cpu/few_queries.h>
#include <gradtile/attention/cpu/key_parts.h>
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/attention/cpu/sequences.h>
#include <gradtile/attention/cpu/task_scratch.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cpu {

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
        for (std::int64_t h = 0; h < heads; ++h) rules.push_back(scores.rule_of<A>(s.index, h, s.first_key));
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

/// Returns how many tasks may run at the same time: `batch_tasks` if the sequences are not packed. For packed
/// sequences it is the thread count, because a dry run does not know the lengths.
std::int64_t concurrent_tasks(const Context& ctx, const ResolvedOptions& options, std::int64_t batch_tasks) {
    return options.packed ? ctx.threads().size() : batch_tasks;
}

template <class T>
void forward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                   const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v;
    using A = Accumulator<T>;
    const Geometry full_geometry = geometry_of(options, options.mask, q_in, v_in);
    const std::int64_t heads = q_in.size(2), group = k_in.size(2) == 0 ? 1 : heads / k_in.size(2);
    const KeyParts parts = key_parts_of(options, q_in, kernels.blocks(full_geometry));
    const std::int64_t batch_tasks = row_tasks_of_batch(q_in, kernels.blocks(full_geometry)) * parts.count;
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, saved.o, q_in.dtype());
    const TaskScratch scratch(ctx, concurrent_tasks(ctx, options, batch_tasks),
                              kernels.forward_scratch_bytes(full_geometry));
    const PartResults<A> part_results(ctx, parts.divided() ? parts.count : 0, q_in, v_in.size(3));
    const CallRanges call_ranges(ctx, options, q_in);
    if (ctx.is_planning()) return;
    const std::vector<Sequence> sequences = sequences_of(options, q_in);
    const auto geometries = geometries_of(options, sequences, q_in, v_in);
    auto rules = rules_of<A>(options, sequences, heads);
    const std::vector<KeyRanges> ranges = call_ranges.load(ctx, sequences);
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
        const std::size_t position = tasks.sequence_of(task);
        const Sequence& s = sequences[position];
        const Geometry& geometry = geometries[position];
        const std::int64_t block = kernels.blocks(geometry).forward_rows;
        const std::int64_t row_blocks = ceil_div(s.mask.queries, block);
        const std::int64_t index = (task - tasks.first(position)) / parts.count, h = index / row_blocks;
        const std::int64_t part = (task - tasks.first(position)) % parts.count;
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
                        : &rules[position * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h)]};
        if (!ranges.empty())
            block_task.ranges =
                ranges[position * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h)];
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
        const double scaled_lse = units * static_cast<double>(lse[i]),
                     rest = remainder == nullptr ? 0.0 : units * static_cast<double>(remainder[i]);
        const A rounded = static_cast<A>(scaled_lse + rest);
        const double lost = (scaled_lse - static_cast<double>(rounded)) + rest;
        to.lse[i] = lse[i] == -std::numeric_limits<A>::infinity() ? -lse[i] : rounded;
        to.remainder[i] = lost - lost == 0 ? static_cast<A>(lost) : A(0);  // 0 if it is not finite
    }
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
            for (std::int64_t block = first_block; block < std::min(first_block + blocks_of_group, most);
                 ++block)
                for (std::int64_t s = first;
                     s < std::min<std::int64_t>(first + sequences_of_group, sequences); ++s)
                    if (const auto position = static_cast<std::size_t>(s);
                        block < blocks_of_sequences[position])
                        order.blocks.push_back({position, block});
            if (std::ssize(order.blocks) > begin) order.groups.push_back({begin, std::ssize(order.blocks)});
        }
    return order;
}

/// A backward call's arguments, and the sizes that follow from them.
template <class T>
struct BackwardCall {
    const Context& ctx;
    const FlashKernels<T>& kernels;
    const ResolvedOptions& options;
    const Saved& saved;
    const OutputGradients& d_out;
    const Gradients& into;

    Geometry full_geometry = geometry_of(options, options.mask, saved.q, saved.v);
    Blocks blocks = kernels.blocks(full_geometry);
    std::int64_t batch = saved.q.size(0), queries = saved.q.size(1), heads = saved.q.size(2);
    std::int64_t key_heads = saved.k.size(2);
    std::int64_t group = key_heads == 0 ? 1 : heads / key_heads;  ///< query heads that share a K/V head
    std::int64_t key_blocks = ceil_div(saved.k.size(1), blocks.backward_keys);

    /// Returns the most row blocks of one head, for all sequences together. Each packed sequence's last row
    /// block may be incomplete.
    std::int64_t max_row_blocks() const {
        return batch * ceil_div(queries, blocks.backward_rows) + options.packed.count;
    }
};

/// A backward call's tensors, in layouts that the kernels can read and write, and its scratch memory. Only
/// this struct allocates. A dry run constructs it too, so both allocate the same in the same order.
template <class T>
struct BackwardMemory {
    using A = Accumulator<T>;

    explicit BackwardMemory(const BackwardCall<T>& call)
        : q(call.ctx, call.saved.q),
          k(call.ctx, call.saved.k),
          v(call.ctx, call.saved.v),
          o(call.ctx, call.saved.o),
          d_o(call.ctx, call.d_out.o),
          d_lse(call.ctx, call.d_out.lse.defined() ? call.d_out.lse : call.saved.lse,
                /*direct=*/!call.d_out.lse.defined() || call.d_out.lse.is_contiguous()),
          d_q(call.ctx, call.into.q, dtype_of<A>),
          d_k(call.ctx, call.into.k, dtype_of<T>),
          d_v(call.ctx, call.into.v, dtype_of<T>),
          lse(empty_like(call.ctx, call.saved.lse)),
          lse_remainder(empty_like(call.ctx, call.saved.lse)),
          delta(empty_like(call.ctx, call.saved.lse)),
          turns(empty(call.ctx, {call.heads, call.max_row_blocks()}, DType::i32)),
          bias_gradients(call.ctx, call.options.scores, call.into),
          ranges(call.ctx, call.options, call.saved.q),
          groups(groups_of(call)),
          head_groups(ceil_div(call.key_heads, groups.heads)),
          products(call.options, call.full_geometry, call.saved.q, call.saved.k, call.blocks.backward_keys),
          kernel_bytes(ceil_div(call.kernels.backward_scratch_bytes(call.full_geometry), std::size_t{64}) *
                       64),
          scratch(call.ctx, concurrent_tasks(call.ctx, call.options, batch_tasks(call)),
                  kernel_bytes + products.scratch_bytes()) {}

    /// Packed sequences are sorted by their lengths, and may have smaller blocks than the whole tensor.
    typename BiasGradients<A>::Groups groups_of(const BackwardCall<T>& call) const {
        return call.options.packed ? bias_gradients.packed_groups(call.options.packed.count, call.key_heads,
                                                                  call.saved.k.size(1))
                                   : bias_gradients.groups(call.batch, call.key_heads, call.key_blocks);
    }
    /// Returns how many key block tasks a call without packed sequences has.
    std::int64_t batch_tasks(const BackwardCall<T>& call) const {
        return ceil_div(call.key_blocks, groups.key_blocks) * ceil_div(call.batch, groups.batches) *
               head_groups;
    }

    Readable q, k, v, o, d_o, d_lse;
    Writable d_q, d_k, d_v;
    /// The LSE in the kernels' score units, and D = rowsum(dO * O) - dLSE. These tensors hold a matrix
    /// [heads, rows] for each sequence, one sequence after the other.
    Tensor lse, lse_remainder, delta;
    Tensor turns;  ///< DqTurns::counters: [heads, row blocks] for each sequence
    BiasGradients<A> bias_gradients;
    CallRanges ranges;
    /// If several tasks add to the same bias gradient sums, they become one task.
    typename BiasGradients<A>::Groups groups;
    std::int64_t head_groups;
    FewQueriesProducts<T> products;
    std::size_t kernel_bytes;  ///< a task's scratch memory begins with the kernel's; the products' follows
    TaskScratch scratch;
};

/// The phases of a backward call, in the order in which they run.
template <class T>
class BackwardPass {
    using A = Accumulator<T>;

  public:
    BackwardPass(const BackwardCall<T>& call, const BackwardMemory<T>& memory)
        : call_(call),
          memory_(memory),
          ctx_(call.ctx),
          sequences_(sequences_of(call.options, call.saved.q)),
          geometries_(geometries_of(call.options, sequences_, call.saved.q, call.saved.v)),
          rules_(rules_of<A>(call.options, sequences_, call.heads)),
          ranges_(memory.ranges.load(call.ctx, sequences_)) {
        for (const Geometry& g : geometries_)
            row_tasks_.add_sequence(call.heads * ceil_div(g.mask.queries, call.blocks.backward_rows));
        if (!memory.bias_gradients.any()) return;
        for (const Sequence& s : sequences_)
            for (std::int64_t h = 0; h < call.heads; ++h)
                bias_gradients_.push_back(memory.bias_gradients.for_head(s.index, h, s.first_key));
    }

    void load_inputs() const {
        for (const Readable* x :
             {&memory_.q, &memory_.k, &memory_.v, &memory_.o, &memory_.d_o, &memory_.d_lse})
            x->load(ctx_);
    }

    /// Sets to 0 what the kernels do not overwrite.
    void clear_outputs() const {
        const PackedSequences& packed = call_.options.packed;
        fill(ctx_, rows_after_last(packed, memory_.d_q.tensor()), 0);
        fill(ctx_, keys_after_last(packed, memory_.d_k.tensor()), 0);
        fill(ctx_, keys_after_last(packed, memory_.d_v.tensor()), 0);
        memory_.scratch.clear();
        memory_.bias_gradients.clear(ctx_);
    }

    /// Prepares all row blocks for the key blocks' tasks: computes D, converts the LSE, and starts dQ.
    void prepare_rows() const {
        parallel_for(ctx_, row_tasks_.count(), [&](std::int64_t task) {
            const RowBlock block = row_block(task);
            compute_delta(block);
            convert_block_lse(block);
            start_dq(block, task);
        });
    }

    /// Computes dK and dV of all key blocks, and adds each key block's part to dQ and to the bias gradients.
    /// All tasks of a head process the head's row blocks in the same order. A task waits only for tasks with
    /// lower numbers. Tasks with lower numbers have already started, so no task waits forever.
    void process_key_blocks() const {
        const std::int64_t head_groups = memory_.head_groups, heads_per_group = memory_.groups.heads;
        const KeyBlockOrder order = key_block_order();
        parallel_for(ctx_, std::ssize(order.groups) * head_groups, [&](std::int64_t task) {
            const IndexRange block_range = order.groups[static_cast<std::size_t>(task / head_groups)];
            const std::int64_t first_head = task % head_groups * heads_per_group;
            const std::int64_t end_head = std::min(first_head + heads_per_group, call_.key_heads);
            const TaskScratch::Piece piece(memory_.scratch);
            for (std::int64_t i = block_range.begin; i < block_range.end; ++i)
                for (std::int64_t h = first_head; h < end_head; ++h)
                    process_key_block(order.blocks[static_cast<std::size_t>(i)], h, piece.data());
        });
    }

    void store_gradients() const {
        for (const Writable* x : {&memory_.d_q, &memory_.d_k, &memory_.d_v}) x->store(ctx_);
        memory_.bias_gradients.store(ctx_);
    }

    /// Computes each head's sink gradient, if it is requested: a sum over all sequences' rows.
    void compute_sink_gradient() const {
        const Tensor& d_sink = call_.into.sink;
        if (!d_sink.defined()) return;
        const ScoreOptions& scores = call_.options.scores;
        parallel_for(ctx_, call_.heads, [&](std::int64_t h) {
            const double sink = scores.rule_of<double>(0, h).sink;
            double sum = 0;
            for (const Sequence& s : sequences_) {
                const RowLse<A> lse = lse_from(s, h);
                add_sink_gradient<A>(sink, s.mask.queries, {lse.lse, lse.remainder}, delta_from(s, h), sum);
            }
            d_sink.data<float>()[h * d_sink.stride(0)] = static_cast<float>(sum);
        });
    }

  private:
    /// Query rows in one head and sequence.
    struct RowBlock {
        const Sequence& sequence;
        const Geometry& geometry;
        std::int64_t head;
        IndexRange rows;
    };

    RowBlock row_block(std::int64_t task) const {
        const std::size_t position = row_tasks_.sequence_of(task);
        const Sequence& s = sequences_[position];
        const std::int64_t blocks = row_blocks_per_head(s), block_rows = call_.blocks.backward_rows;
        const std::int64_t index = task - row_tasks_.first(position), begin = index % blocks * block_rows;
        return {
            s, geometries_[position], index / blocks, {begin, std::min(begin + block_rows, s.mask.queries)}};
    }
    std::int64_t row_blocks_per_head(const Sequence& s) const {
        return ceil_div(s.mask.queries, call_.blocks.backward_rows);
    }

    /// Returns row `head` of a sequence's matrix in `x`, which is memory_.lse, lse_remainder or delta.
    A* matrix_row(const Tensor& x, const Sequence& s, std::int64_t head) const {
        return x.data<A>() + call_.heads * (s.batch * call_.queries + s.first_row) + head * s.mask.queries;
    }
    RowLse<A> lse_from(const Sequence& s, std::int64_t head, std::int64_t first_row = 0) const {
        return {matrix_row(memory_.lse, s, head) + first_row,
                matrix_row(memory_.lse_remainder, s, head) + first_row};
    }
    A* delta_from(const Sequence& s, std::int64_t head) const { return matrix_row(memory_.delta, s, head); }

    /// D = rowsum(dO * O) - dLSE. A row that sees no key has no dLSE.
    void compute_delta(const RowBlock& block) const {
        const Sequence& s = block.sequence;
        const StridedRows o = head_rows<T, const T>(memory_.o.tensor(), s.batch, s.first_row, block.head);
        const StridedRows d_o = head_rows<T, const T>(memory_.d_o.tensor(), s.batch, s.first_row, block.head);
        const A* const lse = row_numbers<A>(call_.saved.lse, s, block.head);
        A* const delta = delta_from(s, block.head);
        for (std::int64_t i = block.rows.begin; i < block.rows.end; ++i) {
            const bool sees_no_key = lse[i] == -std::numeric_limits<A>::infinity();
            A d = dot<A>(d_o.row(i), o.row(i), block.geometry.d_v);
            if (call_.d_out.lse.defined() && !sees_no_key)
                d -= row_numbers<A>(memory_.d_lse.tensor(), s, block.head)[i];
            delta[i] = d;
        }
    }

    /// Converts the LSE to the kernels' score units, with +inf for rows that see no key.
    void convert_block_lse(const RowBlock& block) const {
        const bool is_base_2 = call_.kernels.scores_in_base_2 && rules_.empty();
        const double units = is_base_2 ? std::numbers::log2e_v<double> : 1.0;
        const Sequence& s = block.sequence;
        const std::int64_t begin = block.rows.begin;
        const Tensor &lse = call_.saved.lse, &remainder = call_.saved.lse_remainder;
        convert_lse<A>(block.rows.end - begin, units, row_numbers<A>(lse, s, block.head) + begin,
                       remainder.defined() ? row_numbers<A>(remainder, s, block.head) + begin : nullptr,
                       lse_from(s, block.head, begin));
    }

    /// Stores the index of the K/V block that adds to dQ first. If the rows see no key, no K/V block adds to
    /// dQ, so the function sets dQ = 0.
    void start_dq(const RowBlock& block, std::int64_t task) const {
        const Sequence& s = block.sequence;
        const IndexRange visible = s.mask.visible_keys(block.rows);
        const std::int64_t backward_keys = call_.kernels.blocks(block.geometry).backward_keys;
        turn_counters()[task] = static_cast<std::int32_t>(visible.begin / backward_keys);
        if (visible.end > visible.begin) return;
        const StridedRows d_q = head_rows<A, A>(memory_.d_q.tensor(), s.batch, s.first_row, block.head);
        for (std::int64_t i = block.rows.begin; i < block.rows.end; ++i)
            std::fill_n(d_q.row(i), block.geometry.d_qk, A(0));
    }
    std::int32_t* turn_counters() const {
        const Tensor& turns = memory_.turns;
        return turns.data<std::int32_t>();
    }

    KeyBlockOrder key_block_order() const {
        std::vector<std::int64_t> key_blocks;
        for (const Geometry& g : geometries_)
            key_blocks.push_back(ceil_div(g.mask.keys, call_.kernels.blocks(g).backward_keys));
        return order_of_key_blocks(key_blocks, memory_.groups.key_blocks, memory_.groups.batches);
    }

    void process_key_block(const KeyBlock& key_block, std::int64_t key_head, std::byte* scratch) const {
        BackwardTask<T> task = kernel_task(key_block, key_head);
        task.products = memory_.products.compute(task, scratch + memory_.kernel_bytes);
        call_.kernels.backward(task, scratch);
    }

    BackwardTask<T> kernel_task(const KeyBlock& key_block, std::int64_t key_head) const {
        const Sequence& s = sequences_[key_block.sequence];
        const Geometry& geometry = geometries_[key_block.sequence];
        const std::int64_t head = key_head * call_.group;
        const std::int64_t backward_keys = call_.kernels.blocks(geometry).backward_keys;
        const std::int64_t begin = key_block.block * backward_keys;
        const std::int64_t blocks_per_head = row_blocks_per_head(s);
        const Tensor &q = memory_.q.tensor(), &d_o = memory_.d_o.tensor(), &d_q = memory_.d_q.tensor();
        const RowLse<A> lse = lse_from(s, head);
        return {.geometry = &geometry,
                .k = head_rows<T, const T>(memory_.k.tensor(), s.batch, s.first_key, key_head),
                .v = head_rows<T, const T>(memory_.v.tensor(), s.batch, s.first_key, key_head),
                .d_k = head_rows<T, T>(memory_.d_k.tensor(), s.batch, s.first_key, key_head),
                .d_v = head_rows<T, T>(memory_.d_v.tensor(), s.batch, s.first_key, key_head),
                .keys = {begin, std::min(begin + backward_keys, s.mask.keys)},
                .key_block = key_block.block,
                .group = call_.group,
                .q = head_rows<T, const T>(q, s.batch, s.first_row, head),
                .d_o = head_rows<T, const T>(d_o, s.batch, s.first_row, head),
                .d_q = head_rows<A, A>(d_q, s.batch, s.first_row, head),
                .q_head_stride = q.stride(2),
                .d_o_head_stride = d_o.stride(2),
                .d_q_head_stride = d_q.stride(2),
                .lse = lse.lse,
                .lse_remainder = lse.remainder,
                .delta = delta_from(s, head),
                .turns = {turn_counters() + row_tasks_.first(key_block.sequence) + head * blocks_per_head,
                          blocks_per_head},
                .rules = head_element(rules_, key_block.sequence, head),
                .ranges = head_element(ranges_, key_block.sequence, head),
                .bias_gradients = head_element(bias_gradients_, key_block.sequence, head)};
    }

    /// Returns a head's element in a list [sequences, heads]; null if the list is empty.
    template <class Element>
    const Element* head_element(const std::vector<Element>& list, std::size_t sequence,
                                std::int64_t head) const {
        return list.empty() ? nullptr
                            : list.data() + static_cast<std::int64_t>(sequence) * call_.heads + head;
    }

    const BackwardCall<T>& call_;
    const BackwardMemory<T>& memory_;
    const Context& ctx_;
    std::vector<Sequence> sequences_;
    std::vector<Geometry> geometries_;
    std::vector<ScoreRule<A>> rules_;                     // [sequences, heads]
    std::vector<KeyRanges> ranges_;                       // [sequences, heads]
    std::vector<BiasGradientsOfHead<A>> bias_gradients_;  // [sequences, heads]
    TaskNumbers row_tasks_;                               // [heads, row blocks] for each sequence
};

template <class T>
void backward_typed(const Context& ctx, const FlashKernels<T>& kernels, const ResolvedOptions& options,
                    const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    const BackwardCall<T> call{ctx, kernels, options, saved, d_out, into};
    const BackwardMemory<T> memory(call);
    if (ctx.is_planning()) return;
    const BackwardPass<T> pass(call, memory);
    pass.load_inputs();
    pass.clear_outputs();
    pass.prepare_rows();
    pass.process_key_blocks();
    pass.store_gradients();
    pass.compute_sink_gradient();
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

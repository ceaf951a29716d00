#include <gradtile/layers/transformer/memory_plan.h>

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <sstream>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/internal/offload_stream.h>
#include <gradtile/layers/transformer/transformer.h>

namespace gradtile {
namespace {

/// Formats bytes for people: "1.23 GiB".
std::string readable(std::size_t bytes) {
    const char* unit = "MiB";
    double amount = static_cast<double>(bytes) / (1 << 20);
    if (amount >= 1024.0) {
        amount /= 1024.0;
        unit = "GiB";
    }
    std::ostringstream out;
    out << std::fixed << std::setprecision(2) << amount << ' ' << unit;
    return out.str();
}

/// Exchanges nothing, because a dry run has no data.
class PlannedRing final : public attention::Ring {
  public:
    PlannedRing(int rank, int size) : Ring(rank, size) {}

  private:
    void do_start_shift(const Context&, const Tensor&, const Tensor&) const override {}
    void do_finish_shifts(const Context&) const override {}
};

struct PassBytes {
    std::size_t activations = 0;
    std::size_t gradients = 0;  ///< MemoryRequest::gradient_memory; 0 without it
    std::size_t values = 0;     ///< MemoryRequest::value_slots; 0 without it
    std::size_t residuals = 0;  ///< MemoryPlan::residuals
    FrozenBytes frozen = {};    ///< MemoryRequest::frozen_slots
};

/// Measures one rank's peak memory in forward and backward with one micro-batch. Parameters and inputs are
/// allocated in another arena, so they are not counted.
PassBytes pass_bytes(const Context& ctx, const MemoryRequest& request, const PlannedRing& ring) {
    const Context outside = ctx.plan(Arena::for_planning(ctx.device()));
    ParameterStore parameters, frozen;
    const Transformer model(request.model, parameters, frozen, request.training, request.adapters);
    parameters.allocate(outside, request.dtype, {.gradient_block = !request.gradient_memory});
    frozen.allocate(outside, request.dtype, {.gradients = false});
    const Shape batch{request.micro_batch, request.model.context / request.ring};
    const Tensor tokens = empty(outside, batch, DType::i32);
    const Tensor targets = empty(outside, batch, DType::i32);

    const auto arena = Arena::for_planning(ctx.device());
    const Context inside = ctx.plan(arena);
    ForwardOptions training{.dropout = DropoutKey::from_step(0, 1, 0)};
    if (request.ring > 1) {
        training.documents = {.positions = empty(outside, batch, DType::i32), .ring = &ring};
        if (request.max_documents > 0)
            training.documents.row_ranges =
                empty(outside, {request.ring * batch[0], 1, batch[1], 4}, DType::i32);
    } else if (request.row_ranges) {
        training.documents = {.positions = empty(outside, batch, DType::i32),
                              .row_ranges = empty(outside, {batch[0], 1, batch[1], 4}, DType::i32)};
    } else if (request.max_documents > 0) {
        const std::int64_t documents = request.micro_batch * request.max_documents;
        training.documents = {.offsets = empty(outside, {documents + 1}, DType::i32),
                              .positions = empty(outside, batch, DType::i32)};
    }
    const auto gradient_arena = Arena::for_planning(ctx.device());
    const BackwardHooks hooks = request.gradient_memory
                                    ? request.gradient_memory(ctx.plan(gradient_arena), parameters)
                                    : BackwardHooks();
    const OffloadStream offload(inside);
    if (request.offload_residuals) training.offload = &offload;
    Transformer::Saved saved;
    const Tensor loss = model.forward(inside, tokens, targets, saved, training);
    model.backward(inside, std::move(saved), hooks);
    return {.activations = arena->peak_bytes(),
            .gradients = gradient_arena->peak_bytes(),
            .values = request.value_slots ? request.value_slots(outside, parameters) : 0,
            .residuals = offload.host().peak_bytes(),
            .frozen = request.frozen_slots ? request.frozen_slots(outside, frozen) : FrozenBytes()};
}

/// The largest of all ranks. The first and the last one have all kinds of calls between them.
PassBytes pass_bytes(const Context& ctx, const MemoryRequest& request) {
    PassBytes most = pass_bytes(ctx, request, PlannedRing(0, request.ring));
    if (request.ring == 1) return most;
    const PassBytes last = pass_bytes(ctx, request, PlannedRing(request.ring - 1, request.ring));
    most.activations = std::max(most.activations, last.activations);
    most.residuals = std::max(most.residuals, last.residuals);
    return most;
}

struct ValueBytes {
    std::size_t on_device = 0, on_host = 0;
};

/// Counts trained values, `all` in a whole block and `own` in this process's part, and frozen values that
/// have slots.
ValueBytes value_bytes(const MemoryRequest& request, const PassBytes& passes, std::size_t all,
                       std::size_t own) {
    const std::size_t at_rest = (request.value_slots ? own : 0) + passes.frozen.at_rest;
    const std::size_t slots = (request.value_slots ? passes.values : all) + passes.frozen.slots;
    return request.offload_values ? ValueBytes{slots, at_rest} : ValueBytes{slots + at_rest, 0};
}

/// The numbers that a checkpoint stores.
struct SavedNumbers {
    std::size_t elements;                        ///< trained, of all processes
    OptimizerPart part;                          ///< of this process
    std::size_t frozen_bytes, own_frozen_bytes;  ///< of all processes, and of this process's slots at rest
};

bool is_for_gpu(const Context& ctx, const MemoryRequest& request) {
    return ctx.device().is_cuda() || request.is_for_gpu;
}

/// A checkpoint has float32 masters. Frozen parameters do not change, so one copy on the host serves all
/// checkpoints.
void add_saves(const Context& ctx, const SavedNumbers& saved, MemoryPlan& plan) {
    using Save = MemoryRequest::Save;
    const MemoryRequest& request = plan.request;
    if (request.save == Save::none) return;
    const bool on_gpu = is_for_gpu(ctx, request), gathers = request.save == Save::gathered;
    const bool shards_frozen = request.frozen_slots && request.optimizer_shards > 1;
    const std::size_t elements = request.save == Save::part ? saved.part.elements : saved.elements;
    const std::size_t masters = plan.masters > 0 ? elements * size_of(DType::f32) : 0;
    const std::size_t state = gathers ? saved.part.all_state_bytes : saved.part.state_bytes;
    const std::size_t copy = elements * size_of(request.dtype) + masters + state;
    std::size_t frozen = 0;
    if (gathers && shards_frozen) {
        frozen = saved.frozen_bytes;
    } else if (on_gpu && !request.offload_values) {  // in memory that the host cannot read
        frozen = shards_frozen ? saved.own_frozen_bytes : saved.frozen_bytes;
        if (request.save == Save::part && !shards_frozen)
            frozen /= static_cast<std::size_t>(request.optimizer_shards);
    }
    const std::size_t on_host = copy + frozen + (request.joins_masters && !gathers ? masters : 0);
    if (!on_gpu) {
        plan.snapshot = on_host;
        return;
    }
    plan.saved_on_host = on_host;
    if (!gathers && !request.offload_optimizer) plan.snapshot = copy;
}

/// Returns the bytes of the largest result to which products add, so that they are timed with a result
/// elsewhere: a matrix's gradient, or the output of a matrix with an adapter.
std::size_t timed_result(const MemoryRequest& request, const ParameterStore& parameters) {
    std::size_t largest = 0;
    for (const Parameter& parameter : parameters.parameters())
        if (parameter.shape().rank() == 2)
            largest = std::max(largest, static_cast<std::size_t>(parameter.padded_elements()) *
                                            size_of(accumulator_of(request.dtype)));
    if (request.adapters.rank == 0) return largest;
    const auto rows = static_cast<std::size_t>(request.micro_batch * request.model.context);
    const BlockMatrices matrices = block_matrices(request.model);
    for (const MatrixShape& matrix : {matrices.qkv, matrices.proj, matrices.up, matrices.down})
        largest = std::max(largest, rows * static_cast<std::size_t>(std::max(matrix.in, matrix.out)) *
                                        size_of(request.dtype));
    return largest;
}

}  // namespace

MemoryPlan plan_memory(const Context& ctx, const MemoryRequest& request) {
    check(request.micro_batch >= 1, "micro-batch: ", request.micro_batch, "; expected at least 1");
    check(request.optimizer_shards >= 1, "optimizer shards: ", request.optimizer_shards,
          "; expected at least 1");
    check(request.ring >= 1 && (request.ring == 1 || request.model.context % (2 * request.ring) == 0),
          "memory plan: ", request.ring, " processes share sequences of ", request.model.context,
          " tokens; expected a multiple of two chunks for each");
    validate(request.model);
    check(activations_are_countable(request.model, request.micro_batch), "micro-batch: ", request.micro_batch,
          " is too large to plan");
    ParameterStore parameters, frozen;
    const Transformer model(request.model, parameters, frozen, request.training, request.adapters);
    const auto elements = static_cast<std::size_t>(parameters.flat_elements());
    const std::int64_t multiple = parameter_alignment * request.optimizer_shards;
    const auto equal_part =
        static_cast<std::size_t>(rounded_up(parameters.flat_elements(), multiple) / request.optimizer_shards);
    const OptimizerPart part =
        request.optimizer_part ? request.optimizer_part(parameters) : OptimizerPart{.elements = equal_part};
    PassBytes passes = pass_bytes(ctx, request);
    const std::size_t all_values = elements * size_of(request.dtype);
    if (request.samples)
        passes.activations =
            std::max(passes.activations, (request.value_slots ? all_values : 0) + passes.frozen.whole);
    const ValueBytes values =
        value_bytes(request, passes, all_values, part.elements * size_of(request.dtype));
    const std::size_t gradient_size = size_of(accumulator_of(request.dtype));
    const bool has_sums = request.optimizer_shards > 1 || request.gradient_memory;
    const std::size_t sum_size = request.bfloat16_sums ? size_of(DType::bf16) : gradient_size;
    const std::size_t gradient_sums = has_sums ? part.elements * sum_size : 0;
    const auto frozen_elements = static_cast<std::size_t>(frozen.flat_elements());
    const std::size_t code_bytes = static_cast<std::size_t>(frozen.code_words()) * size_of(DType::i32);
    const std::size_t all_frozen = frozen_elements * size_of(request.dtype) + code_bytes;
    const std::size_t frozen_bytes = request.frozen_slots ? 0 : all_frozen;
    MemoryPlan plan{.request = request,
                    .parameters = parameters.count() + frozen.count(),
                    .frozen = frozen.count(),
                    .values = values.on_device + frozen_bytes,
                    .masters = is_16_bit(request.dtype) ? part.elements * part.master_bytes : 0,
                    .gradients = (request.offload_gradients ? 0 : gradient_sums) +
                                 (request.gradient_memory ? passes.gradients : elements * gradient_size),
                    .gradient_sums = gradient_sums,
                    .optimizer = part.state_bytes,
                    .activations = passes.activations,
                    .residuals = passes.residuals,
                    .offloaded_values = values.on_host};
    plan.shard_copies = static_cast<std::size_t>(request.shard_copies) * part.shard_bytes(request.dtype);
    add_saves(ctx, {elements, part, all_frozen, passes.frozen.at_rest}, plan);
    if (is_for_gpu(ctx, request) && request.times_products) plan.graph = timed_result(request, parameters);
    plan.graph = std::max(plan.graph, request.graph);
    if (is_for_gpu(ctx, request)) plan.cuda_context = cuda_context_memory(plan.host());
    return plan;
}

std::int64_t largest_micro_batch_that_fits(const Context& ctx, MemoryRequest request, std::size_t budget) {
    const auto fits = [&](std::int64_t micro_batch) {
        if (!activations_are_countable(request.model, micro_batch)) return false;
        request.micro_batch = micro_batch;
        return plan_memory(ctx, request).total() <= budget;
    };
    if (!fits(1)) return 0;
    // Memory grows with the micro-batch, so doubling finds an upper bound and bisection the largest that
    // fits.
    std::int64_t fitting = 1, too_large = 2;
    while (fits(too_large)) {
        fitting = too_large;
        too_large *= 2;
    }
    while (too_large - fitting > 1) {
        const std::int64_t middle = fitting + (too_large - fitting) / 2;
        (fits(middle) ? fitting : too_large) = middle;
    }
    return fitting;
}

std::string what_would_fit(const Context& ctx, const MemoryRequest& request, std::size_t budget) {
    const std::int64_t largest = largest_micro_batch_that_fits(ctx, request, budget);
    std::string alternatives;
    for (const auto& [level, name] : EnumNames<Recompute>::names) {
        if (level <= request.training.recompute) continue;
        MemoryRequest other = request;
        other.training.recompute = level;
        const std::int64_t more = largest_micro_batch_that_fits(ctx, other, budget);
        if (more > largest)
            alternatives += concat(alternatives.empty() ? " (recompute " : ", ", name, ": ", more);
    }
    if (!alternatives.empty()) alternatives += ')';
    return concat(largest == 0 ? std::string("not even a micro-batch of 1 fits")
                               : concat("the largest micro-batch that fits is ", largest),
                  alternatives);
}

MemoryPlan plan_within(const Context& ctx, const MemoryRequest& request, std::size_t budget) {
    MemoryPlan plan = plan_memory(ctx, request);
    if (plan.total() <= budget) return plan;
    throw Error(concat("memory: micro-batch ", request.micro_batch, " needs ", readable(plan.total()),
                       ", the budget is ", readable(budget), "; ", what_would_fit(ctx, request, budget)));
}

std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan) {
    const auto line = [&](const char* what, std::size_t bytes) {
        out << "  " << std::left << std::setw(18) << what << std::right << std::setw(16) << bytes
            << " bytes  " << std::setw(11) << readable(bytes) << '\n';
    };
    const ModelConfig& model = plan.request.model;
    out << "memory for " << plan.parameters << " parameters in " << plan.request.dtype;
    if (plan.frozen > 0) out << " (" << plan.parameters - plan.frozen << " trained)";
    if (plan.frozen > 0 && plan.request.adapters.frozen_format != WeightFormat::same)
        out << ", the blocks' frozen matrices in " << name_of(plan.request.adapters.frozen_format);
    out << ", micro-batch " << plan.request.micro_batch << " x " << model.context << " tokens"
        << ", recompute " << name_of(plan.request.training.recompute);
    if (plan.request.ring > 1) out << ", a part of 1/" << plan.request.ring << " of each sequence";
    if (plan.request.optimizer_shards > 1)
        out << (plan.request.value_slots || plan.request.frozen_slots
                    ? ", the optimizer's, the gradients' and the parameters' part of "
                : plan.request.gradient_memory ? ", the optimizer's and the gradients' part of "
                                               : ", the optimizer's part of ")
            << plan.request.optimizer_shards;
    out << '\n';
    const auto optimizer_lines = [&] {
        if (plan.masters > 0) line("masters", plan.masters);
        line("optimizer state", plan.optimizer);
    };
    const bool offloads_optimizer = plan.request.offload_optimizer;
    line("parameters", plan.values);
    line("gradients", plan.gradients);
    line("activations", plan.activations);
    if (!offloads_optimizer) optimizer_lines();
    if (plan.snapshot > 0) line("checkpoint copy", plan.snapshot);
    if (plan.shard_copies > 0) line("shard copies", plan.shard_copies);
    if (plan.graph > 0) line(plan.request.graph == plan.graph ? "CUDA graph" : "timed products", plan.graph);
    line("total", plan.total());
    if (plan.cuda_context > 0) line("with CUDA, about", plan.used());
    if (plan.host() > 0) {
        out << "and in host memory, page-locked\n";
        if (plan.request.offload_values) line("parameters", plan.offloaded_values);
        if (offloads_optimizer) optimizer_lines();
        if (plan.request.offload_gradients) line("sums of gradients", plan.gradient_sums);
        if (plan.request.offload_residuals) line("residuals", plan.residuals);
        if (plan.saved_on_host > 0) line("checkpoint copy", plan.saved_on_host);
        line("host memory", plan.host());
    }
    return out;
}

}  // namespace gradtile

#pragma once
/// Computes how much memory a training run needs before the run starts.
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/pass_hooks.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// One process's share of the optimizer.
struct OptimizerPart {
    std::size_t elements = 0;         ///< elements that this process updates in the flat blocks
    std::size_t state_bytes = 0;      ///< moments, without masters
    std::size_t all_state_bytes = 0;  ///< of all processes
    std::size_t master_bytes = 4;     ///< of the master of a 16-bit element
    double product_flops = 0.0;       ///< floating-point operations in matrix products

    /// Bytes of a shard: values, masters, moments, and the count of updates.
    std::size_t shard_bytes(DType values) const {
        constexpr std::size_t count_bytes = 4;
        return elements * (size_of(values) + (is_16_bit(values) ? master_bytes : 0)) + state_bytes +
               count_bytes;
    }
};

/// One process's frozen values where passes read them from slots.
struct FrozenBytes {
    std::size_t at_rest = 0;  ///< this process's part of all
    std::size_t slots = 0;
    std::size_t whole = 0;  ///< all of them, in an arena
};

/// Memory plan inputs.
struct MemoryRequest {
    ModelConfig model;
    TrainingOptions training = {};
    AdapterOptions adapters = {};
    DType dtype = DType::f32;
    std::int64_t micro_batch = 1;    ///< sequences of model.context tokens, processed at once
    std::int64_t max_documents = 0;  ///< packed documents per window; 0: not packed
    bool row_ranges = false;         ///< attention's mask is Documents::row_ranges
    int ring = 1;                    ///< processes that share each sequence (Documents::ring)
    /// Where a checkpoint is copied before it is written. whole: the state of a process that has all of it;
    /// part: the shard of each process, into its part of the checkpoint; both within the device's memory,
    /// unless the optimizer is offloaded, and then to host memory. gathered: the shards of all processes, to
    /// process 0's host memory.
    enum class Save { none, whole, part, gathered };
    Save save = Save::none;
    bool offload_optimizer = false;  ///< masters and optimizer state are in host memory
    bool joins_masters = false;      ///< `whole` and `part` join float32 masters in host memory of their own
    bool offload_gradients = false;  ///< summed gradients are in host memory; requires gradient_memory
    bool bfloat16_sums = false;      ///< summed gradients are in bfloat16; requires gradient_memory
    bool offload_residuals = false;  ///< ForwardOptions::offload
    /// Values are in host memory between passes; requires value_slots, or frozen_slots for frozen ones.
    bool offload_values = false;
    /// How many processes share the masters and optimizer state (ZeRO-1).
    std::int64_t optimizer_shards = 1;
    std::int64_t shard_copies = 0;  ///< copies of a shard that a process has in memory
    /// Returns the largest part that any process has. Undefined: equal parts, and an optimizer without state.
    std::function<OptimizerPart(const ParameterStore&)> optimizer_part = {};
    /// Gradients in slots: returns hooks for the passes of a dry run, after which `ctx` has allocated the
    /// memory in which a process computes gradients. Undefined: a block of all gradients.
    std::function<BackwardHooks(const Context& ctx, const ParameterStore&)> gradient_memory = {};
    /// ZeRO-3 or offload_values: returns the bytes that a process has for values in passes, in addition to
    /// those of its part. `ctx` is for a dry run. Undefined: a block of all values.
    std::function<std::size_t(const Context& ctx, const ParameterStore&)> value_slots = {};
    /// The same for frozen values. Undefined: a block of all frozen values.
    std::function<FrozenBytes(const Context& ctx, const ParameterStore& frozen)> frozen_slots = {};
    /// With slots of values: between steps all values are gathered in the activations' memory, to generate a
    /// sample.
    bool samples = false;
    std::size_t graph = 0;        ///< bytes of the CUDA graph that replays a step
    bool times_products = false;  ///< the first step times matrix products, on a GPU
    bool is_for_gpu = false;      ///< also where a build without CUDA counts the CPU's operators
};

/// The bytes per purpose. operator<< prints the table for `gradtile train --memory`.
struct MemoryPlan {
    MemoryRequest request;
    std::int64_t parameters = 0;    ///< elements, without padding
    std::int64_t frozen = 0;        ///< elements that training does not change, without padding
    std::size_t values = 0;         ///< parameters in the run's dtype, and quantized ones; or their slots
    std::size_t masters = 0;        ///< of 16-bit parameters: float32, or 16 bits beside the value
    std::size_t gradients = 0;      ///< including gradient_sums unless they are offloaded
    std::size_t gradient_sums = 0;  ///< summed gradients beside those that passes compute: this process's
    std::size_t optimizer = 0;
    std::size_t activations = 0;  ///< the smallest Arena for forward, backward and samples
    std::size_t snapshot = 0;     ///< copy, on the device, of what a checkpoint stores and training changes
    std::size_t residuals = 0;    ///< what blocks save for backward in host memory
    std::size_t offloaded_values = 0;  ///< parameters in host memory: this process's
    /// On a GPU: page-locked memory from which a checkpoint is written, and for masters that are joined for
    /// it; in the process that has most, process 0.
    std::size_t saved_on_host = 0;
    std::size_t shard_copies = 0;
    /// The CUDA graph that replays a step, or if it is larger, the largest result of the products that the
    /// first step times.
    std::size_t graph = 0;
    std::size_t cuda_context = 0;  ///< on a GPU, an estimate: cuda_context_memory()
    std::size_t optimizer_state() const { return masters + optimizer; }
    /// Page-locked host memory, without that for tokens: at most 56 bytes for each token of a step.
    std::size_t host() const {
        return residuals + offloaded_values + saved_on_host +
               (request.offload_gradients ? gradient_sums : 0) +
               (request.offload_optimizer ? optimizer_state() : 0);
    }
    /// The device's memory, without tokens (at most 28 bytes for each of a step), tables of positions, and
    /// what unplanned_memory() has room for.
    std::size_t total() const {
        return values + gradients + activations + snapshot + shard_copies + graph +
               (request.offload_optimizer ? 0 : optimizer_state());
    }
    /// Estimates the largest number that the driver reports as used memory.
    std::size_t used() const { return total() + cuda_context; }
};
std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan);

/// Makes a plan with a dry run of forward and backward (Context::plan), so `activations` is exactly what a
/// real step needs whose backward() receives std::move(saved). Tokens and targets are not included. With
/// Context().plan(Arena::for_planning(device)), this machine needs no such device.
MemoryPlan plan_memory(const Context& ctx, const MemoryRequest& request);

/// The largest micro-batch whose plan's total is at most `budget` bytes; 0 when not even one sequence fits.
std::int64_t largest_micro_batch_that_fits(const Context& ctx, MemoryRequest request, std::size_t budget);

/// Describes the largest micro-batch for the requested recomputation level, and for the levels that save
/// less: "the largest micro-batch that fits is 5 (recompute activations: 9, block: 30)".
std::string what_would_fit(const Context& ctx, const MemoryRequest& request, std::size_t budget);

/// Returns the plan if it fits the budget. Otherwise throws Error with the micro-batch, the memory it needs,
/// the budget, and what_would_fit()'s result.
MemoryPlan plan_within(const Context& ctx, const MemoryRequest& request, std::size_t budget);

}  // namespace gradtile

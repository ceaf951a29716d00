#pragma once
/// Computes the memory that a training run needs before the run starts.
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// One process's share of the optimizer.
struct OptimizerPart {
    std::size_t elements = 0;     ///< elements of the flat blocks that this process updates
    std::size_t state_bytes = 0;  ///< moments, without masters
    double product_flops = 0.0;   ///< floating-point operations of matrix products
};

/// The inputs of a memory plan.
struct MemoryRequest {
    ModelConfig model;
    DType dtype = DType::f32;
    std::int64_t micro_batch = 1;    ///< sequences of model.context tokens that are processed at once
    std::int64_t max_documents = 0;  ///< packed documents of a window; 0: not packed
    bool snapshot = false;           ///< a checkpoint is first copied within the device's memory
    /// The number of processes over which masters and optimizer state are divided (ZeRO-1).
    std::int64_t optimizer_shards = 1;
    /// Returns the largest part of any process, for flat blocks of `elements` elements. Undefined: equal
    /// parts, and an optimizer without state.
    std::function<OptimizerPart(const ParameterStore&, std::int64_t elements)> optimizer_part = {};
};

/// The bytes for each purpose. operator<< prints the table of `gradtile train --memory`.
struct MemoryPlan {
    MemoryRequest request;
    std::int64_t parameters = 0;  ///< elements, without padding
    std::int64_t frozen = 0;      ///< those of them that training does not change
    std::size_t values = 0;       ///< parameters in the run's dtype
    std::size_t masters = 0;      ///< float32 masters of 16-bit parameters
    std::size_t gradients = 0;    ///< with optimizer shards, including the sums for this process's part
    std::size_t optimizer = 0;
    std::size_t activations = 0;  ///< the smallest Arena that is enough for forward and backward
    std::size_t snapshot = 0;     ///< copy of the state that a checkpoint stores
    std::size_t total() const { return values + masters + gradients + optimizer + activations + snapshot; }
};
std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan);

/// Makes a plan with a dry run of forward and backward (Context::plan), so `activations` is exactly the
/// memory of a real step. Tokens and targets are not included. With
/// Context().plan(Arena::for_planning(device)), this machine needs no such device.
MemoryPlan plan_memory(const Context& ctx, const MemoryRequest& request);

/// The largest micro-batch whose plan's total is at most `budget` bytes; 0 when not even one sequence fits.
std::int64_t largest_micro_batch_that_fits(const Context& ctx, MemoryRequest request, std::size_t budget);

/// Describes the largest micro-batch for the request's level of recomputation, and for the levels that save
/// less: "the largest micro-batch that fits is 5 (recompute activations: 9, block: 30)".
std::string what_would_fit(const Context& ctx, const MemoryRequest& request, std::size_t budget);

/// Returns the plan if it fits the budget. Otherwise throws Error with the micro-batch, the memory it needs,
/// the budget, and the result of what_would_fit().
MemoryPlan plan_within(const Context& ctx, const MemoryRequest& request, std::size_t budget);

}  // namespace gradtile

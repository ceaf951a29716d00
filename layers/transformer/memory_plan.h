#pragma once
/// The memory that a training run needs, known before its first step.
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>

#include <gradtile/core/context.h>
#include <gradtile/core/dtype.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

/// What one process's optimizer updates, keeps and computes.
struct OptimizerPart {
    std::size_t elements = 0;     ///< of the flat blocks
    std::size_t state_bytes = 0;  ///< without masters
    double product_flops = 0.0;   ///< floating-point operations of matrix products
};

/// The inputs of a memory plan.
struct MemoryRequest {
    ModelConfig model;
    DType dtype = DType::f32;
    std::int64_t micro_batch = 1;  ///< sequences of model.context tokens held at once
    bool snapshot = false;         ///< checkpoints are copied inside the device's memory first
    /// Processes that share the masters and the optimizer's state between them (ZeRO-1): each keeps its part
    /// of the flat blocks.
    std::int64_t optimizer_shards = 1;
    /// The largest part of a process, for flat blocks of so many elements. Undefined: an optimizer without
    /// state, which updates equal parts.
    std::function<OptimizerPart(const ParameterStore&, std::int64_t elements)> optimizer_part = {};
};

/// Bytes by purpose. Prints as the table of `gradtile train --memory`.
struct MemoryPlan {
    MemoryRequest request;
    std::int64_t parameters = 0;  ///< elements, without padding
    std::size_t values = 0;       ///< parameters in the run's dtype
    std::size_t masters = 0;      ///< float32 masters of 16-bit parameters
    std::size_t gradients = 0;    ///< with optimizer shards also the sums of this process's part
    std::size_t optimizer = 0;
    std::size_t activations = 0;  ///< capacity of an Arena in which forward and backward just fit
    std::size_t snapshot = 0;     ///< copy of what a checkpoint holds
    std::size_t total() const { return values + masters + gradients + optimizer + activations + snapshot; }
};
std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan);

/// Runs forward and backward once without computing (Context::plan), so `activations` is what the real step
/// takes, to the byte. Tokens and targets lie outside. With Context().plan(Arena::for_planning(device)) the
/// device need not be there.
MemoryPlan plan_memory(const Context& ctx, const MemoryRequest& request);

/// The largest micro-batch whose plan's total is at most `budget` bytes; 0 when not even one sequence fits.
std::int64_t largest_micro_batch_that_fits(const Context& ctx, MemoryRequest request, std::size_t budget);

/// "the largest micro-batch that fits is 5 (recompute activations: 9, block: 30)": at the request's level of
/// recomputation and those that keep less.
std::string what_would_fit(const Context& ctx, const MemoryRequest& request, std::size_t budget);

/// The plan, or Error with one line: what was asked for, what it needs, the budget, and what would fit.
MemoryPlan plan_within(const Context& ctx, const MemoryRequest& request, std::size_t budget);

}  // namespace gradtile

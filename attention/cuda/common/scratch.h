#pragma once
/// INTERNAL. The scratch memory of a plan, and the types of functions that run plans.
#include <gradtile/attention/internal/flash_plan.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::cuda {

/// The only allocation of a plan's scratch memory.
class Scratch {
  public:
    Scratch(const Context& ctx, const FlashPlan& plan) : plan_(plan) {
        tensors_.reserve(plan.scratch.size());
        for (const ScratchTensor& x : plan.scratch) tensors_.push_back(empty(ctx, x.shape, x.dtype));
    }
    /// The tensor for a use; undefined if the plan has none.
    Tensor operator[](ScratchUse use) const {
        for (std::size_t i = 0; i < tensors_.size(); ++i)
            if (plan_.scratch[i].use == use) return tensors_[i];
        return {};
    }

  private:
    const FlashPlan& plan_;
    std::vector<Tensor> tensors_;
};

/// See passes.h.
using PlannedForward = void(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                            const Saved& saved);
using PlannedBackward = void(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                             const Saved& saved, const OutputGradients& d_out, const Gradients& into);

}  // namespace gradtile::attention::cuda

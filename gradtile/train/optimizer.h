#pragma once
/// What every optimizer offers: one update from the store's gradients, which it leaves as they are.
#include <string>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

/// A tensor of the optimizer's memory under the name a checkpoint gives it ("m/h.0.mlp.fc.weight").
struct StateTensor {
    std::string name;
    Tensor tensor;
};

struct UpdateOptions {
    /// [1] float64: what gradients are multiplied by on the way (clip_global_norm makes it). 0 means that the
    /// update is not applied: weights and state stay as they are. Undefined: 1.
    Tensor gradient_scale = {};
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    /// Updates the store's masters, and the 16-bit values from them in the same pass, at the learning rate
    /// that `rate` ([1] float64 on ctx's device) holds when the work runs. Nothing waits for the device:
    /// whether the update is applied is decided there.
    virtual void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) = 0;
    /// The same at a rate the host knows.
    void step(const Context& ctx, double rate, const UpdateOptions& options = {}) {
        const Tensor on_device = empty(ctx, {1}, DType::f64);
        fill(ctx, on_device, rate);
        step(ctx, on_device, options);
    }
    /// Everything besides the weights that the next step depends on, in a fixed order.
    virtual std::vector<StateTensor> state() const = 0;

    std::size_t state_bytes() const {
        std::size_t sum = 0;
        for (const StateTensor& part : state()) sum += part.tensor.bytes();
        return sum;
    }
};

}  // namespace gradtile

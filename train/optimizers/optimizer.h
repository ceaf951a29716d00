#pragma once
/// What every optimizer offers: one update from the store's gradients, which it leaves as they are.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

/// A tensor of the optimizer's memory under the name a checkpoint gives it ("m/h.0.mlp.fc.weight").
struct StateTensor {
    std::string name;
    Tensor tensor;
    /// Of a shard ("m"): the parameters that all processes' shards of this tensor hold together, and the
    /// stretches of the store's flat blocks that are packed in this one.
    std::vector<Parameter> parameters = {};
    std::vector<FlatRange> ranges = {};
};

/// The part of a store that one process of several updates, when the optimizer's memory is shared out
/// (ZeRO-1): stretches of the store's flat blocks, packed one behind the other in gradients, masters and
/// moments of their own.
struct OptimizerShard {
    std::vector<FlatRange> ranges;
    Tensor gradients;     ///< [packed]
    Tensor masters = {};  ///< [packed] float32; undefined where values have no masters
};

/// A stretch of a parameter that lies in a shard.
struct ShardPiece {
    FlatRange range;
    std::int64_t packed = 0;  ///< where it begins in the shard's gradients and masters
};
/// Of a parameter, with the padding behind it. Throws Error when the shard has masters and the store's values
/// need none, or the other way.
std::vector<ShardPiece> pieces_of(const ParameterStore& store, const Parameter& parameter,
                                  const OptimizerShard& shard);

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

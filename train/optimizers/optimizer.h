#pragma once
/// The interface of every optimizer: one update from the store's gradients, which stay unchanged.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

/// A tensor of the optimizer's state under the name a checkpoint gives it ("m/h.0.mlp.fc.weight").
struct StateTensor {
    std::string name;
    Tensor tensor;
    /// Of a shard ("m"): the parameters whose state the shards of all processes hold together, and the ranges
    /// of the store's flat blocks that are packed in this shard.
    std::vector<Parameter> parameters = {};
    std::vector<FlatRange> ranges = {};
};

/// The part of a store that one process updates under ZeRO-1: ranges of the store's flat blocks, packed back
/// to back in gradients, masters and moments of its own.
struct OptimizerShard {
    std::vector<FlatRange> ranges;
    Tensor gradients;     ///< [packed]
    Tensor masters = {};  ///< [packed] float32; undefined where values have no masters
};
/// All of an allocated store.
OptimizerShard whole_of(const ParameterStore& store);

/// A range of a parameter that lies in a shard.
struct ShardPiece {
    FlatRange range;
    std::int64_t packed = 0;  ///< where it begins in the shard's gradients and masters
};
/// The pieces of a parameter and of the padding behind it. Throws Error when the shard has masters and the
/// store's values need none, or the other way.
std::vector<ShardPiece> pieces_of(const ParameterStore& store, const Parameter& parameter,
                                  const OptimizerShard& shard);

/// What an optimizer keeps and computes for one parameter.
struct ParameterUpdate {
    std::size_t moments = 0;  ///< tensors of the parameter's shape, in the gradients' dtype
    /// Floating-point operations of matrix products, for which one process must update the whole parameter; 0
    /// for an update element by element, which shards divide anywhere.
    double product_flops = 0.0;
};

struct UpdateOptions {
    /// [1] float64: a factor for the gradients, as clip_global_norm() computes it. 0 refuses the update:
    /// weights and state stay unchanged. Undefined: 1.
    Tensor gradient_scale = {};
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    /// Updates the store's masters, and the 16-bit values from them in the same pass, at the learning rate
    /// that `rate` ([1] float64 on ctx's device) holds when the work runs. Nothing waits for the device: the
    /// device decides whether the update is applied.
    virtual void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) = 0;
    /// The same at a rate that the host knows.
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

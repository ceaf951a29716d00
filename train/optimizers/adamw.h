#pragma once
/// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2; Kingma and Ba 2015), in
/// the form PyTorch computes it:
///
///     m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2
///     w = (1 - lr decay) w - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
///
/// t counts applied updates from 1. Matrices decay, vectors do not (Parameter::decays()). One pass over
/// weights, gradients, m and v; arithmetic and state in the gradients' dtype.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

struct AdamWOptions {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;  ///< outside the root
    double weight_decay = 0.0;
};

/// A stretch of elements that one thread (one thread block on a GPU) updates. Offsets and lengths are
/// multiples of 64 elements.
struct AdamWBlock {
    std::int64_t value;     ///< offset in the store's values
    std::int64_t weight;    ///< in the weights that are updated: the masters, or the values themselves
    std::int64_t gradient;  ///< in the gradients
    std::int64_t state;     ///< in m and v
    std::int64_t length;
    std::int64_t decays;  ///< 1 or 0
};

/// The flat arrays that blocks are offsets in.
struct AdamWArrays {
    Tensor values = {}, weights = {}, gradients = {}, m = {}, v = {};
};

/// All stretches of an optimizer.
struct AdamWBlocks {
    std::vector<AdamWBlock> list;
    /// The same bytes on a GPU, int32 [12 list.size()]: uploaded once, for no step can wait for a copy.
    Tensor on_device = {};
    Tensor scratch = {};  ///< on a GPU: float64 [4], what one kernel of a step tells the next
};

class AdamW final : public Optimizer {
  public:
    /// Optimizes every parameter of an allocated store, which must outlive the optimizer. State starts at 0.
    AdamW(const Context& ctx, const ParameterStore& store, const AdamWOptions& options);
    /// Optimizes only the given parameters of the store.
    AdamW(const Context& ctx, const ParameterStore& store, std::span<const Parameter> parameters,
          const AdamWOptions& options);
    /// Optimizes what the shard holds of the given parameters, leaving the rest of the values to others.
    AdamW(const Context& ctx, const ParameterStore& store, std::span<const Parameter> parameters,
          const OptimizerShard& shard, const AdamWOptions& options);

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// "m/NAME" and "v/NAME" for every parameter, "updates" the number t of the last applied update (int32).
    /// Of a shard "m" and "v", packed (see StateTensor), and "updates".
    std::vector<StateTensor> state() const override;

  private:
    void allocate(const Context& ctx, const std::vector<AdamWBlock>& stretches, std::int64_t state_elements);

    const ParameterStore& store_;
    std::vector<Parameter> parameters_;
    std::vector<std::int64_t> state_offsets_;  // by parameter; of no shard
    std::optional<std::vector<FlatRange>> shard_ranges_;
    AdamWBlocks blocks_;
    AdamWOptions options_;
    AdamWArrays arrays_;
    Tensor updates_;
};

}  // namespace gradtile

#pragma once
/// AveragedOptimizer: an optimizer that also keeps the exponential moving average of its weights (Polyak and
/// Juditsky 1992). Averaging replaces a part of the learning rate's decay: the last weights of a run with a
/// high rate are noisy, and their average is not.
#include <memory>
#include <optional>
#include <vector>

#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

/// After each applied update t, counted from 1: average += max(1 / t, 1 - decay) * (weights - average). So
/// the average is the plain mean of the first 1 / (1 - decay) updates, and the initial weights are not in it.
/// The average has the gradients' dtype and is zero at first.
class AveragedOptimizer final : public Optimizer {
  public:
    /// `updates` updates the store's weights or, with a shard, this shard. The store must outlive this
    /// object.
    AveragedOptimizer(const Context& ctx, const ParameterStore& store, std::unique_ptr<Optimizer> updates,
                      double decay, const std::optional<OptimizerShard>& shard = {});

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// Returns the other optimizer's state, then "average/NAME" for each parameter (for a shard one packed
    /// tensor "average") and "average_updates", the number t of the last applied update (int32).
    std::vector<StateTensor> state() const override;
    /// Overwrites the gradients. Waits for the device.
    bool exchange_average(const Context& ctx) override;

  private:
    /// A contiguous part of the weights.
    struct Piece {
        Tensor weights, average, values, scratch;
    };

    std::vector<Parameter> parameters_;
    std::vector<FlatRange> ranges_;
    bool is_shard_;
    std::unique_ptr<Optimizer> optimizer_;
    double decay_;
    Tensor average_;  // [packed]
    std::vector<Piece> pieces_;
    Tensor updates_;
};

}  // namespace gradtile

#pragma once
/// Optimizers that update each element from its own weight, gradient and moments: one pass over flat arrays,
/// by a rule such as AdamW. Matrices decay, vectors do not (Parameter::decays()). Arithmetic is in
/// accumulator_of() the values' dtype; MomentStorage says in which dtype moments are kept.
///
/// A rule is a struct of hyper-parameters with
///     double weight_decay;
///     bool cautious_decay;                              see DecayFactors
///     static constexpr std::array moments{"m", ...};    the moments' names in a checkpoint
///     template <class Real> Formula<Real> formula(double lr, std::int32_t t) const;
/// where t counts applied updates from 1. A second moment must never be negative. The formula, called once
/// per element, updates the moments and returns the step, which is subtracted from the decayed weight:
///     Real operator()(Real g, Real& moment...) const;
/// Both functions are GRADTILE_HOST_DEVICE.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/optimizers/optimizers.h>

namespace gradtile {

/// Elements that one thread (one thread block on a GPU) updates. Offsets and lengths count elements and are
/// multiples of 64.
struct ElementBlock {
    std::int64_t element;   ///< offset in the store's flat blocks, which the rounding of moments depends on
    std::int64_t value;     ///< offset in the values
    std::int64_t weight;    ///< offset in the weights that are updated: the masters, or the values themselves
    std::int64_t gradient;  ///< offset in the gradients
    std::int64_t moment;    ///< offset in each moment
    std::int64_t length;
    std::int64_t group;  ///< index of the block's RateGroup
};

/// Parameters whose weights have the same learning rate and decay.
struct RateGroup {
    double lr_factor = 1.0;  ///< see LearningRateFactor
    bool decays = true;      ///< whether weight decay applies
    bool operator==(const RateGroup&) const = default;
};
/// The maximum number of groups in an optimizer: four factors, each for matrices and for vectors.
inline constexpr std::size_t max_rate_groups = 8;

/// The flat arrays that a block's offsets refer to.
struct ElementArrays {
    Tensor values = {}, weights = {}, gradients = {};
    std::vector<Tensor> moments = {};  ///< in the order of the rule's names
    Seed seed = {};                    ///< see MomentStorage
};

/// All blocks that an optimizer updates.
struct ElementBlocks {
    std::vector<ElementBlock> list;
    std::vector<RateGroup> groups;
    /// On a GPU: a copy of `list` as int32 [14 list.size()]. It is copied to the GPU once, because a step
    /// cannot wait for a copy.
    Tensor on_device = {};
    /// On a GPU: float64 [max_rate_groups, 16], the groups' formulas, which a step's first kernel prepares.
    Tensor scratch = {};
};

class ElementwiseOptimizer final : public Optimizer {
  public:
    /// Optimizes every parameter in an allocated store, which must outlive the optimizer. Moments start at 0.
    ElementwiseOptimizer(const Context& ctx, const ParameterStore& store, const ElementwiseRule& rule);
    /// Optimizes only the given parameters of the store. If there is a shard, updates only their elements in
    /// the shard. Throws Error when parameters have more than max_rate_groups different rates.
    ElementwiseOptimizer(const Context& ctx, const ParameterStore& store,
                         std::span<const Parameter> parameters, const ElementwiseRule& rule,
                         const std::optional<OptimizerShard>& shard = {},
                         const LearningRateFactor& lr_factor = {}, const MomentStorage& storage = {});

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// Returns "m/NAME" for each moment m and each parameter NAME, then "updates", the number t of the last
    /// applied update (int32). For a shard returns one packed tensor "m" for each moment (see StateTensor),
    /// then "updates".
    std::vector<StateTensor> state() const override;
    /// [1] int32 on the device: the number of applied updates.
    const Tensor& updates() const { return updates_; }

  private:
    std::vector<Parameter> parameters_;
    std::vector<FlatRange> ranges_;  // the parameters' ranges, as packed in each moment
    bool is_shard_;
    ElementwiseRule rule_;
    MomentStorage storage_;
    ElementArrays arrays_;
    ElementBlocks blocks_;
    Tensor updates_;
};

}  // namespace gradtile

#pragma once
/// The interface that every optimizer implements. A step updates the weights from the store's gradients and
/// does not change the gradients.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/host_device.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

/// Moments in 8 bits (MomentFormat::int8) are int32 [blocks, 17]: for each block of 64 elements 64 codes,
/// four in a number, and a float32. Parameters and shards begin with a block.
inline constexpr std::int64_t moment_block = parameter_alignment, moment_block_words = 17;

/// A state tensor has a number for each element, one for each matrix row, or 17 for each block of 8-bit
/// moments.
enum class StateLayout { elements, rows, blocks };

/// A tensor in the optimizer's state, with its name in a checkpoint ("m/h.0.mlp.fc.weight").
struct StateTensor {
    std::string name;
    Tensor tensor;
    /// Only for a shard's packed state ("m"): the parameters whose state all processes' shards together
    /// contain, and the ranges of the store's flat blocks that are packed in this shard.
    std::vector<Parameter> parameters = {};
    std::vector<FlatRange> ranges = {};
    /// Rows: the numbers are at the beginning of the parameter's flat range. Blocks: all offsets are scaled.
    StateLayout layout = StateLayout::elements;

    /// The shape that the state of one of `parameters` has in a checkpoint.
    Shape shape_of(const Parameter& parameter) const {
        if (layout == StateLayout::rows) return {parameter.shape()[0]};
        if (layout == StateLayout::elements) return parameter.shape();
        return {ceil_div(parameter.shape().elements(), moment_block), moment_block_words};
    }
    /// How many numbers a flat state has for 64 elements.
    std::int64_t numbers_per_64() const {
        return layout == StateLayout::blocks ? moment_block_words : parameter_alignment;
    }
    /// Where a parameter keeps its numbers in the flat state; `parameter` is one of `parameters`.
    FlatRange numbers_of(const Parameter& parameter) const {
        return {parameter.offset() / parameter_alignment * numbers_per_64(), shape_of(parameter).elements()};
    }
};

/// How the masters of 16-bit values are kept between steps. f32: as float32. split: only what rounding takes
/// from them, in 16 bits; bfloat16 values are their upper halves. The masters are equal in both formats.
enum class MasterFormat { f32, split };
/// The bytes of a master.
constexpr std::size_t master_bytes(MasterFormat format) {
    return format == MasterFormat::split ? 2 : 4;
}

/// The part of a store that one process updates under ZeRO: ranges of the store's flat blocks. The process
/// packs these ranges without gaps into its own gradient, master and moment blocks.
struct OptimizerShard {
    std::vector<FlatRange> ranges;
    Tensor gradients;  ///< [packed] in accumulator_of() the values' dtype, or bfloat16 if that is float32
    /// [packed] float32 masters, or for bfloat16 values int32 [packed / 2], two remainders of masters in each
    /// (MasterFormat::split); undefined if values have no masters.
    Tensor masters = {};
    Tensor values = {};     ///< [packed]; undefined if the values are in the store's value block
    bool is_whole = false;  ///< the shard is the whole store; the state has a tensor for each parameter
    /// Allocates the optimizer's state, except counters; null: the context's allocator.
    std::shared_ptr<Allocator> state_allocator = {};

    /// The tensor with the values: [packed], or the store's block.
    const Tensor& values_in(const ParameterStore& store) const {
        return values.defined() ? values : store.values();
    }
    Context state_context(const Context& ctx) const {
        return state_allocator ? ctx.with_allocator(state_allocator) : ctx;
    }
};
/// Returns the shard that covers a whole allocated store.
OptimizerShard whole_of(const ParameterStore& store);

/// A parameter range that lies in a shard.
struct ShardPiece {
    FlatRange range;
    std::int64_t packed = 0;  ///< the range's offset in the shard's gradients and masters
};
/// Returns which parts of a parameter, and of the padding after it, are in the shard. Throws Error when the
/// shard has masters but the store's values need none, or the shard lacks masters that the values need.
std::vector<ShardPiece> pieces_of(const ParameterStore& store, const Parameter& parameter,
                                  const OptimizerShard& shard);

/// The format of an optimizer's moments between steps. f32: the dtype of the arithmetic. bf16, int8: each
/// update rounds the moments stochastically, so that their mean is exact; the arithmetic must be float32.
/// int8: blocks of 64 elements have a common scale.
enum class MomentFormat { f32, bf16, int8 };

/// How an optimizer keeps the moments that have a parameter's shape.
struct MomentStorage {
    MomentFormat format = MomentFormat::f32;
    Seed seed = {};  ///< for the rounding, together with the update's number and the element's offset

    bool in_blocks() const { return format == MomentFormat::int8; }
    /// How many numbers hold a moment of these elements, a multiple of 64 for blocks.
    std::int64_t numbers(std::int64_t elements) const {
        return in_blocks() ? elements / moment_block * moment_block_words : elements;
    }
    std::vector<FlatRange> numbers(std::vector<FlatRange> elements) const {
        for (FlatRange& range : elements) range = {numbers(range.begin), numbers(range.length)};
        return elements;
    }
    StateLayout layout() const { return in_blocks() ? StateLayout::blocks : StateLayout::elements; }
};
/// Returns the dtype of the numbers that hold the moments of an optimizer whose arithmetic is in
/// `arithmetic`, accumulator_of() the values' dtype. Throws Error for a storage that it does not have.
DType moment_dtype(const MomentStorage& storage, DType arithmetic);
/// Returns the part of a parameter's moments in a packed moment tensor, whose first element is `begin`.
Tensor moments_of(const MomentStorage& storage, const Tensor& moments, const Parameter& parameter,
                  std::int64_t begin);

/// The memory and the work that an optimizer needs for one parameter.
struct ParameterUpdate {
    std::size_t moments = 0;      ///< tensors with the parameter's shape; see MomentStorage
    std::size_t row_moments = 0;  ///< tensors with one number per row, in the dtype of the arithmetic
    /// Floating-point operations in matrix products. If the number is not 0, one process must update the
    /// whole parameter; 0 means that the update is element by element, so shards may cut the parameter
    /// anywhere.
    double product_flops = 0.0;
};

/// A parameter's factor on the learning rate that step() receives. Empty: 1 for every parameter.
using LearningRateFactor = std::function<double(const Parameter&)>;

/// An update multiplies a weight by `aligned` if the step and the weight have the same sign, so that both
/// make the weight smaller, and by `opposed` otherwise. Plain decay has equal factors; cautious decay (Chen
/// et al. 2025, arXiv 2510.12402) has opposed = 1.
template <class Real>
struct DecayFactors {
    Real aligned = 1, opposed = 1;

    GRADTILE_HOST_DEVICE static DecayFactors at(double rate, double weight_decay, bool cautious) {
        const Real keep = static_cast<Real>(1.0 - rate * weight_decay);
        return {keep, cautious ? Real{1} : keep};
    }
    GRADTILE_HOST_DEVICE Real decayed(Real weight, Real step) const {
        return (step * weight >= Real{0} ? aligned : opposed) * weight;
    }
};

struct UpdateOptions {
    /// [1] float64: a factor for the gradients, as clip_global_norm() computes it. The factor 0 refuses the
    /// update: weights and state do not change. Undefined: the factor is 1.
    Tensor gradient_scale = {};
};

class Optimizer {
  public:
    virtual ~Optimizer() = default;
    /// Updates the store's masters, and in the same pass rounds them to the 16-bit values. `rate` is [1]
    /// float64 on ctx's device; the device reads it when the work runs. The host does not wait for the
    /// device: the device decides whether the update is applied.
    virtual void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) = 0;
    /// Updates at a learning rate that the host knows.
    void step(const Context& ctx, double rate, const UpdateOptions& options = {}) {
        const Tensor on_device = empty(ctx, {1}, DType::f64);
        fill(ctx, on_device, rate);
        step(ctx, on_device, options);
    }
    /// Returns all tensors, except the weights, that the next step depends on, in a fixed order.
    virtual std::vector<StateTensor> state() const = 0;

    std::size_t state_bytes() const {
        std::size_t sum = 0;
        for (const StateTensor& part : state()) sum += part.tensor.bytes();
        return sum;
    }
};

}  // namespace gradtile

// Elementwise optimizers on the GPU. A first kernel with one thread per rate group reads rate and gradient
// scale from device memory, and decides whether to update and with which formulas. A second kernel updates
// all elements in one pass.
#include <algorithm>

#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/master_weights.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/train/optimizers/internal/moment_blocks.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int width = 4;  // elements that a thread loads at once: 16 bytes of float32
static_assert(64 % width == 0, "blocks are multiples of 64 elements");
static_assert(width == MomentDraws::elements, "a thread's elements have one draw");

/// The numbers that a group's elements use in a step. They are stored in the optimizer's scratch memory.
template <class Real, class Formula>
struct PreparedStep {
    double gradient_scale;  // if 0, the update is refused
    MomentDraws draws;
    DecayFactors<Real> decay;
    Formula formula;
};

/// A kernel's argument.
struct RateGroups {
    RateGroup list[max_rate_groups];
};

/// Thread g prepares group g.
template <class Real, class Rule, class Formula>
__global__ void prepare_kernel(PreparedStep<Real, Formula>* prepared, std::int32_t* updates,
                               const double* gradient_scale, const double* rate, Rule rule, RateGroups groups,
                               Seed seed) {
    device::await_predecessor();
    const double scale = gradient_scale != nullptr ? *gradient_scale : 1.0;
    PreparedStep<Real, Formula>& step = prepared[threadIdx.x];
    step.gradient_scale = scale;
    if (scale == 0.0) return;
    const std::int32_t t = *updates + 1;
    const RateGroup group = groups.list[threadIdx.x];
    const double lr = *rate * group.lr_factor;
    step.decay = DecayFactors<Real>::at(lr, group.decays ? rule.weight_decay : 0.0, rule.cautious_decay);
    step.formula = rule.template formula<Real>(lr, t);
    step.draws = MomentDraws::of(seed, t);
    __syncthreads();  // every thread has read the count
    if (threadIdx.x == 0) *updates = t;
}

template <class Gradient, class Weight, class Value, class Moment, int moments>
struct Pointers {
    Weight* weights;  // or the masters' remainders
    Value* values;    // the weights themselves when there is no master
    const Gradient* gradients;
    Moment* moment[moments];
};

/// Stores `width` neighbours' values of moment k; bfloat16 is rounded with the moment's bits in the draw.
template <class Moment, class Real>
__device__ __forceinline__ void store_moment(Moment* to, const device::Packed<Real, width>& moment,
                                             const Philox::Counter& draw, std::size_t k) {
    device::Packed<Moment, width> stored;
#pragma unroll
    for (int j = 0; j < width; ++j) {
        if constexpr (std::is_same_v<Moment, Real>) {
            stored[j] = moment[j];
        } else {
            stored[j] =
                rounded_stochastically(moment[j], MomentDraws::bits(draw[static_cast<std::size_t>(j)], k));
        }
    }
    *reinterpret_cast<device::Packed<Moment, width>*>(to) = stored;
}

template <class Real, class Moment>
__device__ __forceinline__ device::Packed<Real, width> load_moment(const Moment* from, std::size_t) {
    const auto stored = *reinterpret_cast<const device::Packed<Moment, width>*>(from);
    device::Packed<Real, width> moment;
#pragma unroll
    for (int j = 0; j < width; ++j) moment[j] = device::convert<Real>(stored[j]);
    return moment;
}

// Moments in 8 bits: a thread block's elements are whole blocks.
static_assert(width == device::moments_per_thread);
template <class Real>
__device__ __forceinline__ device::FourMoments load_moment(const MomentBlock* from, std::size_t k) {
    return device::load_moments(from, k);
}
__device__ __forceinline__ void store_moment(MomentBlock* to, const device::FourMoments& moment,
                                             const Philox::Counter& draw, std::size_t k) {
    device::store_moments(to, moment, draw, k);
}

template <class Real, class Gradient, class Weight, class Value, class Moment, class Formula,
          std::size_t... k>
__global__ void __launch_bounds__(threads_per_block)
    update_kernel(Pointers<Gradient, Weight, Value, Moment, sizeof...(k)> arrays, const ElementBlock* blocks,
                  const PreparedStep<Real, Formula>* prepared, std::index_sequence<k...>) {
    // The block is read before await_predecessor(), because no kernel changes the block list.
    const ElementBlock block = blocks[blockIdx.x];
    device::await_predecessor();
    const PreparedStep<Real, Formula> step = prepared[block.group];
    if (step.gradient_scale == 0.0) return;
    const Real scale = static_cast<Real>(step.gradient_scale);
    using Reals = device::Packed<Real, width>;
    using Gradients = device::Packed<Gradient, width>;
    using Values = device::Packed<Value, width>;
    using Weights = device::Packed<Weight, width>;

    for (std::int64_t i = threadIdx.x * width; i < block.length; i += threads_per_block * width) {
        auto* const weights = reinterpret_cast<Weights*>(arrays.weights + block.weight + i);
        auto* const values = reinterpret_cast<Values*>(arrays.values + block.value + i);
        const auto* const gradients =
            reinterpret_cast<const Gradients*>(arrays.gradients + block.gradient + i);
        Moment* const moments[] = {advanced(arrays.moment[k], block.moment + i)...};
        Weights w = *weights;
        Values value{};
        if constexpr (!std::is_same_v<Weight, Real>) value = *values;
        Reals updated, moment[] = {load_moment<Real>(moments[k], k)...};
        const Gradients gradient = *gradients;
#pragma unroll
        for (int j = 0; j < width; ++j) {
            const Real change = step.formula(device::convert<Real>(gradient[j]) * scale, moment[k][j]...);
            updated[j] = step.decay.decayed(loaded_weight<Real>(w[j], value[j]), change) - change;
            w[j] = kept_weight<Weight>(updated[j]);
            if constexpr (!std::is_same_v<Real, Value>) value[j] = device::value_of_weight<Value>(updated[j]);
        }
        *weights = w;
        Philox::Counter draw{};
        if constexpr (!std::is_same_v<Moment, Real>) draw = step.draws.draw(block.element + i);
        (store_moment(moments[k], moment[k], draw, k), ...);
        if constexpr (!std::is_same_v<Real, Value>) *values = value;
    }
}

template <class Gradient, class Weight, class Value, class Moment, class Rule, std::size_t... k>
void step_of_type(const Context& ctx, const ElementArrays& arrays, const ElementBlocks& blocks,
                  const Tensor& updates, const Tensor& rate, const Rule& rule, const UpdateOptions& options,
                  std::index_sequence<k...> all_moments) {
    using Real = Accumulator<Value>;
    using Formula = decltype(rule.template formula<Real>(0.0, 0));
    using Prepared = PreparedStep<Real, Formula>;
    check(max_rate_groups * sizeof(Prepared) <= blocks.scratch.bytes(),
          "elementwise optimizer: ", blocks.scratch.bytes(), " bytes of scratch; expected at least ",
          max_rate_groups * sizeof(Prepared));
    auto* const prepared = reinterpret_cast<Prepared*>(blocks.scratch.raw_data());
    const double* const scale = data_or_null<double>(options.gradient_scale);
    RateGroups groups{};
    std::ranges::copy(blocks.groups, groups.list);
    launch(ctx, prepare_kernel<Real, Rule, Formula>, dim3(1),
           Block{.threads = max_rate_groups, .starts_early = true}, prepared, updates.data<std::int32_t>(),
           scale, static_cast<const double*>(rate.data<double>()), rule, groups, arrays.seed);
    if (blocks.list.empty()) return;
    const Pointers<Gradient, Weight, Value, Moment, sizeof...(k)> pointers{
        weight_data<Weight>(arrays.weights),
        arrays.values.data<Value>(),
        arrays.gradients.data<Gradient>(),
        {moments_at<Moment>(arrays.moments[k], 0)...}};
    launch(ctx, update_kernel<Real, Gradient, Weight, Value, Moment, Formula, k...>,
           dim3(static_cast<unsigned>(blocks.list.size())),
           Block{.threads = threads_per_block, .starts_early = true}, pointers,
           reinterpret_cast<const ElementBlock*>(blocks.on_device.raw_data()),
           static_cast<const Prepared*>(prepared), all_moments);
}

}  // namespace

void elementwise_step(const Context& ctx, const ElementArrays& arrays, const ElementBlocks& blocks,
                      const Tensor& updates, const Tensor& rate, const ElementwiseRule& any_rule,
                      const UpdateOptions& options) {
    const auto step = [&]<class Rule>(const Rule& rule) {
        visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
            using Real = Accumulator<Value>;
            visit_kept_type<Real>(arrays.gradients.dtype(), [&]<class Gradient>(TypeTag<Gradient>) {
                visit_stored_moments<Real>(
                    arrays.moments.front().dtype(), [&]<class Moment>(TypeTag<Moment>) {
                        visit_weight_type<Real, Value>(
                            arrays.weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
                                step_of_type<Gradient, Weight, Value, Moment>(
                                    ctx, arrays, blocks, updates, rate, rule, options,
                                    std::make_index_sequence<Rule::moments.size()>{});
                            });
                    });
            });
        });
    };
    std::visit(step, any_rule);
}

}  // namespace gradtile::cuda

#pragma once
/// The gradient of a pair bias, a [queries, keys] matrix, with Hopper's asynchronous products and copies. A
/// thread block owns a gradient tile and loops over the batches and heads that share it, as the sequences in
/// an Evoformer share a pair bias. The bias tile stays in shared memory and the dS sum in registers, so the
/// addition order is fixed. Where the gradient has few tiles, several thread blocks divide a tile's batches
/// and heads, and another kernel adds their sums in a fixed order.
#include <gradtile/attention/cuda/common/bias_parts.cuh>
#include <gradtile/attention/cuda/sm90/bias_tiles.cuh>

namespace gradtile::attention::cuda {

struct HopperBiasGradientParameters {
    gradtile::cuda::TensorMap q, d_o, k, v;  ///< boxes: a tile's rows or keys
    HopperBiases biases;
    Bits16BackwardParameters params;
    BiasGradient gradient;
    BiasGradientParts parts;
};

namespace device {

/// A thread block's shared memory.
template <class Policy>
struct HopperBiasGradientShared {
    static constexpr HopperBiasGradientTiles tiles = Policy::tiles;
    static_assert(tiles.rows == tiles.keys);
    using InputTile = PanelTile<tiles.rows, Policy::head_dim>;  ///< Q, dO, K or V
    using BiasTile = device::BiasTile<tiles.rows>;
    static constexpr int statistics_bytes = 4 * tiles.rows;
    static constexpr int stage_inputs = 4 * InputTile::bytes, stage_numbers = 3 * statistics_bytes;
    static constexpr int bias = 0, inputs = 2 * BiasTile::bytes,
                         numbers = inputs + tiles.stages * stage_inputs,
                         rings = numbers + tiles.stages * stage_numbers;
    struct Rings {
        Ring<1> bias;
        Ring<tiles.stages> stages;
    };
    static_assert(sizeof(Rings) <= HopperBiasGradientTiles::ring_bytes);
    static_assert(rings + HopperBiasGradientTiles::ring_bytes == tiles.shared_bytes(Policy::head_dim));

    /// A stage's addresses.
    struct Stage {
        std::uint32_t q, d_o, k, v, lse, delta, key_biases;
        __device__ __forceinline__ Stage(std::uint32_t base, int stage)
            : q(base + inputs + stage * stage_inputs),
              d_o(q + InputTile::bytes),
              k(d_o + InputTile::bytes),
              v(k + InputTile::bytes),
              lse(base + numbers + stage * stage_numbers),
              delta(lse + statistics_bytes),
              key_biases(delta + statistics_bytes) {}
    };
};

/// The batches and heads that a thread block adds up.
struct BiasGradientWork {
    BiasBlock block;
    int begin, end;

    __device__ BiasGradientWork(const HopperBiasGradientParameters& p, int tile_rows, int tile_keys)
        : block(p.gradient, p.params.mask.queries, p.params.mask.keys, tile_rows, tile_keys) {
        const bool is_visible = p.params.mask.sees_any(static_cast<int>(block.row), tile_rows,
                                                       static_cast<int>(block.key), tile_keys);
        const int all = is_visible ? p.gradient.summed_batches * p.gradient.summed_heads : 0,
                  part = static_cast<int>(blockIdx.y);
        begin = static_cast<int>(std::int64_t{all} * part / p.parts.count);
        end = static_cast<int>(std::int64_t{all} * (part + 1) / p.parts.count);
    }
    struct Head {
        int batch, head;
    };
    __device__ Head operator()(const BiasGradient& g, int n) const {
        const int batch = n / g.summed_heads;
        return {block.batch * g.summed_batches + batch,
                block.head * g.summed_heads + n - batch * g.summed_heads};
    }
    __device__ int row() const { return static_cast<int>(block.row); }
    __device__ int key() const { return static_cast<int>(block.key); }
};

/// Starts all copies to shared memory. One thread runs this.
template <class Policy>
__device__ __forceinline__ void produce_bias_gradient(
    const HopperBiasGradientParameters& p, std::uint32_t base,
    typename HopperBiasGradientShared<Policy>::Rings& rings) {
    using Shared = HopperBiasGradientShared<Policy>;
    using Tile = typename Shared::InputTile;
    using BiasTile = typename Shared::BiasTile;
    constexpr auto tiles = Policy::tiles;
    const BiasGradientWork work(p, tiles.rows, tiles.keys);
    if (work.begin >= work.end) return;
    const BiasGradientWork::Head first = work(p.gradient, work.begin);
    const RingPosition bias(rings.bias);
    const int bias_keys = bias_tile_keys(p.biases.matrix);
    bias.full().arrive_and_expect(tiles.keys / bias_keys * BiasTile::bytes);
    for (int i = 0; i < tiles.keys / bias_keys; ++i)
        load_bias_tile<BiasTile>(base + Shared::bias + i * BiasTile::bytes, p.biases, first.batch, first.head,
                                 work.row(), work.key() + i * bias_keys, bias.full());
    RingPosition stages(rings.stages);
    for (int n = work.begin; n < work.end; ++n) {
        const BiasGradientWork::Head head = work(p.gradient, n);
        const typename Shared::Stage to(base, stages.stage());
        const BoxPosition rows{0, work.row(), head.head, head.batch},
            keys{0, work.key(), head.head / p.params.sizes.group, head.batch};
        const std::int64_t statistics =
            (static_cast<std::int64_t>(head.batch) * p.params.sizes.heads + head.head) *
                p.params.padded_rows +
            work.row();
        stages.wait_empty();
        stages.full().arrive_and_expect(Shared::stage_inputs + 2 * Shared::statistics_bytes);
        Tile::load(to.q, p.q, rows, stages.full());
        Tile::load(to.k, p.k, keys, stages.full());
        Tile::load(to.d_o, p.d_o, rows, stages.full());
        Tile::load(to.v, p.v, keys, stages.full());
        load_bytes(to.lse, p.params.lse_log2 + statistics, Shared::statistics_bytes, stages.full());
        load_bytes(to.delta, p.params.delta + statistics, Shared::statistics_bytes, stages.full());
        stages.advance();
    }
}

/// Writes each stage's key biases, in base 2 unless an LSE is large. Several warps run this and take the
/// stages in turns, since one warp's loads from the L2 cache take longer than a stage's products.
template <class T, class Policy>
__device__ __forceinline__ void produce_key_biases(const HopperBiasGradientParameters& p, std::uint32_t base,
                                                   typename HopperBiasGradientShared<Policy>::Rings& rings,
                                                   int warp) {
    using Shared = HopperBiasGradientShared<Policy>;
    constexpr auto tiles = Policy::tiles;
    constexpr int lane_keys = tiles.keys / 32, warps = tiles.key_bias_warps();
    constexpr float unit = Policy::has_large_lse ? 1.0f : log2_e;
    const BiasGradientWork work(p, tiles.rows, tiles.keys);
    RingPosition stages(rings.stages);
    float next[lane_keys] = {};
    const auto read = [&](int n) {
        if (n >= work.end) return;
        const BiasGradientWork::Head head = work(p.gradient, n);
        const KeyBiases biases(p.biases, head.batch, head.head);
        biases.template sum<T>(next, work.key() + lane_index(), p.params.mask.keys);
    };
    for (int i = 0; i < warp; ++i) stages.advance();
    read(work.begin + warp);
    for (int n = work.begin + warp; n < work.end; n += warps) {
        float sums[lane_keys];
#pragma unroll
        for (int i = 0; i < lane_keys; ++i) sums[i] = unit * next[i];
        read(n + warps);
        stages.wait_empty();
        const std::uint32_t to = typename Shared::Stage(base, stages.stage()).key_biases + lane_index() * 4;
#pragma unroll
        for (int i = 0; i < lane_keys; ++i)
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + i * 128), "f"(sums[i]) : "memory");
        stages.full().arrive_as_warp();
#pragma unroll
        for (int i = 0; i < warps; ++i) stages.advance();
    }
}

/// A consumer warpgroup. It computes 64 rows in the tile, half the keys at a time: the products for one half
/// are computed during the exponentials for the other half.
template <class T, class Policy>
class BiasGradientConsumer {
    using Shared = HopperBiasGradientShared<Policy>;
    using Tile = typename Shared::InputTile;
    using BiasTile = typename Shared::BiasTile;
    static constexpr auto tiles = Policy::tiles;
    static constexpr int half_keys = tiles.keys / 2, half_tiles = half_keys / 8;
    using HalfTile = PanelTile<half_keys, Policy::head_dim>;  ///< half a panel's rows
    using Half = FragmentC[1][half_tiles];

  public:
    __device__ __forceinline__ BiasGradientConsumer(const HopperBiasGradientParameters& p, std::uint32_t base,
                                                    typename Shared::Rings& rings, int warpgroup)
        : p_(p),
          base_(base),
          bias_(rings.bias),
          stages_(rings.stages),
          warpgroup_row_(warpgroup * 64),
          row_(warpgroup * 64 + warp_index() % 4 * 16) {}

    __device__ __forceinline__ void consume() {
        const BiasGradientWork work(p_, tiles.rows, tiles.keys);
        Half sum[2];
        clear(sum[0]);
        clear(sum[1]);
        if (work.begin < work.end) {
            const bool sees_all = p_.params.mask.sees_all(work.row() + row_, 16, work.key(), tiles.keys);
            bias_.wait_full();
            Half s[2], d_p[2];
            stages_.wait_full();
            start(s[0], d_p[0], stages_.stage(), 0);
            await_products<0>(s[0][0], d_p[0][0]);
            for (int n = work.begin; n < work.end - 1; ++n)
                add</*has_next=*/true>(sum, s, d_p, work, n, sees_all);
            add</*has_next=*/false>(sum, s, d_p, work, work.end - 1, sees_all);
        }
        const BiasGradient into =
            p_.parts.count == 1
                ? p_.gradient
                : sums_of_part(p_.gradient, p_.parts, static_cast<int>(blockIdx.y), p_.params.mask);
#pragma unroll
        for (int half = 0; half < 2; ++half)
            for_each_element(sum[half], [&](float& element, int, int n, int e) {
                work.block.store(into, row_ + e / 2 * 8 + lane_index() / 4,
                                 half * half_keys + n * 8 + lane_index() % 4 * 2 + e % 2, element,
                                 p_.params.mask.queries, p_.params.mask.keys);
            });
    }

  private:
    /// Adds dS for batch and head number n. The products for the first half of the keys must be complete.
    /// Also computes these products for the next batch and head.
    template <bool has_next>
    __device__ __forceinline__ void add(Half (&sum)[2], Half (&s)[2], Half (&d_p)[2],
                                        const BiasGradientWork& work, int n, bool sees_all) {
        const typename Shared::Stage inputs(base_, stages_.stage());
        start(s[1], d_p[1], stages_.stage(), 1);
        add_d_s(sum[0], s[0], d_p[0], inputs, work, n, sees_all, 0);
        await_products<0>(s[1][0], d_p[1][0]);
        RingPosition<tiles.stages> next = stages_;
        next.advance();
        if constexpr (has_next) {
            next.wait_full();
            start(s[0], d_p[0], next.stage(), 0);
        }
        add_d_s(sum[1], s[1], d_p[1], inputs, work, n, sees_all, 1);
        if constexpr (has_next) await_products<0>(s[0][0], d_p[0][0]);
        stages_.empty().arrive_as_warp();
        stages_ = next;
    }

    /// Starts S = Q K^T and dP = dO V^T for half the keys.
    __device__ __forceinline__ void start(Half& s, Half& d_p, int stage, int half) const {
        const typename Shared::Stage inputs(base_, stage);
        const int rows = warpgroup_row_ * Tile::row_bytes, keys = half * half_keys * Tile::row_bytes;
        begin_products();
        start_a_bt<T, Tile, HalfTile>(s[0], inputs.q + rows, inputs.k + keys);
        start_a_bt<T, Tile, HalfTile>(d_p[0], inputs.d_o + rows, inputs.v + keys);
        commit_products();
    }

    /// sum += P (dP - D) for batch and head number n.
    __device__ __forceinline__ void add_d_s(Half& sum, Half& s, const Half& d_p,
                                            const typename Shared::Stage& inputs,
                                            const BiasGradientWork& work, int n, bool sees_all,
                                            int half) const {
        if constexpr (Policy::has_large_lse) {
            const BiasGradientWork::Head head = work(p_.gradient, n);
            const RowReferences references(
                p_.params.lse, p_.params.lse_remainder,
                static_cast<std::int64_t>(head.batch) * p_.params.sizes.heads + head.head,
                p_.params.mask.queries);
            const int row = work.row() + row_ + lane_index() / 4;
            const ExactLse rows[2] = {references(row), references(row + 8)};
            add_d_s(sum, s, d_p, inputs, work, sees_all, half,
                    [&](float product, int i, float term, float key_bias) {
                        return exact_probability(fmaf(product, p_.params.scale, key_bias) + term, rows[i],
                                                 p_exponent);
                    });
        } else {
            float lse[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const std::uint32_t row_offset = (row_ + lane_index() / 4 + i * 8) * 4;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(lse[i])
                             : "r"(inputs.lse + row_offset)
                             : "memory");
            }
            add_d_s(sum, s, d_p, inputs, work, sees_all, half,
                    [&](float product, int i, float term, float key_bias) {
                        return power_of_two(
                            fmaf(product, p_.params.scale_log2, fmaf(term, log2_e, key_bias - lse[i])));
                    });
        }
    }
    /// Calls probability_of(product, lane's row, bias, key bias) for each pair.
    template <class Probability>
    __device__ __forceinline__ void add_d_s(Half& sum, Half& s, const Half& d_p,
                                            const typename Shared::Stage& inputs,
                                            const BiasGradientWork& work, bool sees_all, int half,
                                            const Probability& probability_of) const {
        const int key = half * half_keys;
        if (!sees_all) mask_scores(s, p_.params.mask, work.row() + row_, work.key() + key);
        float delta[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const std::uint32_t row_offset = (row_ + lane_index() / 4 + i * 8) * 4;
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(delta[i])
                         : "r"(inputs.delta + row_offset)
                         : "memory");
        }
        const std::uint32_t key_biases = inputs.key_biases + key * 4 + lane_index() % 4 * 8,
                            tile = base_ + Shared::bias + row_ * BiasTile::row_bytes;
        const auto add = [&](int n, int i, float2 terms, float2 key_terms) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int element = i * 2 + e;
                const float probability = probability_of(s[0][n][element], i, e == 0 ? terms.x : terms.y,
                                                         e == 0 ? key_terms.x : key_terms.y);
                sum[0][n][element] =
                    fmaf(probability, fmaf(d_p[0][n][element], 1 / p_factor, -delta[i]), sum[0][n][element]);
            }
        };
        if (p_.biases.matrix == BiasMatrix::bits16) {
            const auto lane_tile = LanePointer<BiasTile>::stacked(tile);
#pragma unroll
            for (int n = 0; n < half_tiles; n += 2) {
                std::uint32_t matrices[4];
                load_matrices<false>(matrices, lane_tile.at(0, key + n * 8));
                const float2 key_terms[2] = {load_two_floats(key_biases + n * 32),
                                             load_two_floats(key_biases + n * 32 + 32)};
#pragma unroll
                for (int i = 0; i < 4; ++i) add(n + i / 2, i % 2, unpack<T>(matrices[i]), key_terms[i / 2]);
            }
        } else {
            const std::uint32_t half_tile = tile + half * BiasTile::bytes;
#pragma unroll
            for (int n = 0; n < half_tiles; ++n) {
                const float2 key_terms = load_two_floats(key_biases + n * 32);
                const int column = n * 8 % 32 + lane_index() % 4 * 2;
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    add(n, i,
                        load_two_floats(half_tile + n * 8 / 32 * BiasTile::panel_bytes +
                                        BiasTile::offset(lane_index() / 4 + i * 8, column / 4) +
                                        column % 4 * 4),
                        key_terms);
            }
        }
    }

    const HopperBiasGradientParameters& p_;
    std::uint32_t base_;
    RingPosition<1> bias_;
    RingPosition<tiles.stages> stages_;
    int warpgroup_row_, row_;  ///< the warpgroup's and the warp's first row in the tile
};

template <class T, class Policy>
__global__ void __launch_bounds__(Policy::tiles.threads(), 1)
    hopper_pair_bias_gradient_kernel(const __grid_constant__ HopperBiasGradientParameters p) {
    using Shared = HopperBiasGradientShared<Policy>;
    constexpr auto tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    auto& rings = *reinterpret_cast<typename Shared::Rings*>(shared + Shared::rings);
    if (threadIdx.x == 0) {
        constexpr int consumer_warps = 4 * tiles.consumers;
        initialize(rings.bias, consumer_warps);
        initialize(rings.stages, consumer_warps, /*fills=*/2);
        publish_barriers();
    }
    __syncthreads();
    gradtile::cuda::device::await_predecessor();
    if ((*p.params.has_large_lse != 0) != Policy::has_large_lse) return;
    const std::uint32_t base = shared_address(shared);
    const int warpgroup = warpgroup_index();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<tiles.producer_registers>();
        if (threadIdx.x == tiles.consumers * warpgroup_threads) produce_bias_gradient<Policy>(p, base, rings);
        if (const int warp = warp_index() - 4 * tiles.consumers - 1;
            warp >= 0 && warp < tiles.key_bias_warps())
            produce_key_biases<T, Policy>(p, base, rings, warp);
    } else {
        take_registers_up_to<tiles.consumer_registers>();
        BiasGradientConsumer<T, Policy>(p, base, rings, warpgroup).consume();
    }
}

}  // namespace device

/// P has two forms, with a large LSE and without. Each has its own kernel, and both are launched: one kernel
/// for both would spill registers.
template <int head_dim_, bool has_large_lse_>
struct HopperBiasGradientPolicy {
    static constexpr int head_dim = head_dim_;
    static constexpr bool has_large_lse = has_large_lse_;
    static constexpr HopperBiasGradientTiles tiles = hopper_bias_gradient_tiles(head_dim);
};

template <class T>
void launch_hopper_pair_bias_gradient(const HopperBackwardTensors& x,
                                      const Bits16BackwardParameters& parameters,
                                      const BiasGradient& gradient, const BiasGradientParts& parts,
                                      const Context& ctx) {
    using namespace gradtile::cuda;
    const device::DeviceMask& mask = parameters.mask;
    visit_head_dim(
        HeadDims<32, 64>{}, std::max(parameters.sizes.qk_dim, parameters.sizes.v_dim),
        [&]<int head_dim>(HeadDim<head_dim>) {
            using Policy = HopperBiasGradientPolicy<head_dim, false>;
            using Shared = device::HopperBiasGradientShared<Policy>;
            constexpr HopperBiasGradientTiles tiles = Policy::tiles;
            constexpr int shared_bytes = tiles.shared_bytes(head_dim);
            static_assert(shared_bytes <= 227 * 1024);
            const auto map = [](const Tensor& tensor) {
                return tensor_map(tensor, Policy::tiles.rows, Shared::InputTile::swizzle);
            };
            const HopperBiasGradientParameters p{
                .q = map(x.q),
                .d_o = map(x.d_o),
                .k = map(x.k),
                .v = map(x.v),
                .biases = HopperBiases(parameters.scores, x.q, mask, tiles.rows),
                .params = parameters,
                .gradient = gradient,
                .parts = parts};
            const dim3 blocks(device::bias_blocks(gradient, mask.queries, mask.keys, tiles.rows, tiles.keys),
                              static_cast<unsigned>(parts.count));
            for (const auto kernel :
                 {device::hopper_pair_bias_gradient_kernel<T, Policy>,
                  device::hopper_pair_bias_gradient_kernel<T, HopperBiasGradientPolicy<head_dim, true>>})
                launch(ctx, kernel, blocks,
                       {static_cast<unsigned>(tiles.threads()), shared_bytes, /*starts_early=*/true}, p);
        });
    add_bias_gradient_parts(gradient, parts, mask, static_cast<cudaStream_t>(ctx.stream()));
}

}  // namespace gradtile::attention::cuda

#pragma once
/// The kernel of decode.h for many queries per K/V head, on Hopper. A warpgroup takes 64 queries and
/// multiplies by wgmma, which reads a tile of K or V from shared memory once. mma.sync reads it once for
/// every 16 or 32 queries, and these reads bounded it: 203 us, and 120 us with wgmma, for 16 tokens of 4 K/V
/// heads with head dim 128 and 256 MiB of keys and values (bench/results/2026-11-30-h200-kernels.md). The
/// rest of the kernel is in decode/tiles.cuh.
#include <gradtile/attention/cuda/sm90/hopper.h>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/decode/tiles.cuh>

namespace gradtile::attention::cuda {
namespace decoding {

/// A PanelTile that threads copy, 16-byte chunk by chunk.
template <int rows, int columns>
struct CopiedPanels : device::PanelTile<rows, columns> {
    using Panels = device::PanelTile<rows, columns>;
    static constexpr int row_chunks = columns / 8, panel_chunks = Panels::panel_columns / 8;
    __device__ static constexpr std::uint32_t offset(int row, int chunk) {
        return chunk / panel_chunks * Panels::panel_bytes + Panels::offset(row, chunk % panel_chunks);
    }
};

/// A thread block's layout: one warpgroup, and tiles of K and V in a ring of `stages` stages. A tile's copy,
/// S, the softmax and P V follow each other, so a second block on the multiprocessor computes while this one
/// waits: one block with three or five stages took 180 us for the 120 above.
template <int max_dim_>
struct WarpgroupBlock {
    static constexpr int max_dim = max_dim_, queries = DecodePlan::queries_in_warpgroups, threads = 128,
                         warps = 4;
    static constexpr bool several_tokens = true;
    static constexpr int keys = 64, pass_keys = keys, first_key_step = keys;
    static constexpr int stages = max_dim <= 64 ? 4 : 2;
    static constexpr int m_tiles = 1, parts = 1, warp_keys = keys;  // a warp has 16 queries and all keys
    static constexpr int blocks_per_sm = 2;
    using KvTile = CopiedPanels<keys, max_dim>;
    static constexpr int tile_alignment = 1024;
};

/// decode_kernel() calls the public functions in their order.
template <class T, class Block_>
class WarpgroupThread : public TilesWork<T, Block_, RingShared<Block_>> {
    using Base = TilesWork<T, Block_, RingShared<Block_>>;
    using Base::max_dim, Base::stages;
    using Base::p_, Base::lane_, Base::text_, Base::keys_, Base::o_, Base::softmax_;
    using typename Base::KvTile;
    static_assert(Block_::blocks_per_sm * (sizeof(RingShared<Block_>) + 1024) <= 228 * 1024);

  public:
    using Block = Block_;
    using Base::Base;

    __device__ __forceinline__ void load_queries() {
        this->store_first_new();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int h = this->row_of(i);
            const T* const q = p_.q.at(text_, this->token_of(h), this->head_of(h));
#pragma unroll
            for (int k = 0; k < max_dim / 16; ++k)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = k * 16 + half * 8 + lane_ % 4 * 2;
                    queries_[k][0][half * 2 + i] =
                        column < p_.head_dim ? *reinterpret_cast<const std::uint32_t*>(q + column) : 0;
                }
        }
        this->append();
        device::clear(o_);
    }

    /// Adds all keys in the split. The next tiles are copied while a tile is computed.
    __device__ __forceinline__ void attend() {
        for (int tile = 0; this->first_key_of(tile) < keys_.end; ++tile) {
            kernels::wait_for_copies<stages - 2>();
            kernels::publish_shared_writes();
            // The tile is in shared memory, and no product reads the stage that is loaded next.
            __syncthreads();
            this->load_cached(tile + stages - 1);
            this->store_new(tile + stages - 1);
            const std::uint32_t k = kernels::shared_address(this->stage_of(tile));
            kernels::FragmentC s[1][Block::keys / 8];
            multiply_keys(s, k);
            this->apply_rule(s, this->first_key_of(tile));
            softmax_.update(s, o_);
            add_values(s, k + KvTile::bytes);
        }
    }

  private:
    using Scores = kernels::FragmentC[1][Block::keys / 8];

    __device__ __forceinline__ void multiply_keys(Scores& s, std::uint32_t k_tile) const {
        kernels::begin_products();
        device::start_a_bt<T, KvTile>(s[0], queries_, k_tile);
        kernels::commit_products();
        kernels::await_products<0>(s[0]);
    }
    __device__ __forceinline__ void add_values(const Scores& p, std::uint32_t v_tile) {
        kernels::FragmentA probabilities[Block::keys / 16][1];
        device::as_operand_a<T>(probabilities, p);
        kernels::begin_products();
        device::start_a_b<T, KvTile>(o_[0], probabilities, v_tile);
        kernels::commit_products();
        kernels::await_products<0>(o_[0]);
    }

    kernels::FragmentA queries_[max_dim / 16][1];  // the left operand of S
};

}  // namespace decoding

template <class T>
void launch_hopper_decode(const Context& ctx, const DecodeProblem& problem, const DecodePlan& plan,
                          const decoding::DecodeParameters<T>& parameters) {
    using namespace decoding;
    visit_head_dim(HeadDims<64, 128>{}, parameters.head_dim, [&]<int dim>(HeadDim<dim>) {
        launch_decode<WarpgroupThread<T, WarpgroupBlock<dim>>>(ctx, problem, plan, parameters);
    });
}

}  // namespace gradtile::attention::cuda

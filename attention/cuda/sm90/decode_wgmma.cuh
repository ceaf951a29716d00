#pragma once
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/decode_tiles.cuh>

namespace gradtile::attention::cuda::decoding {

template <int rows, int columns>
struct PanelRows : device::PanelTile<rows, columns, 64> {
    using Panel = device::PanelTile<rows, columns, 64>;
    static constexpr int row_chunks = columns / 8;
    __device__ static constexpr std::uint32_t offset(int row, int chunk) {
        return chunk / 8 * Panel::panel_bytes + Panel::offset(row, chunk % 8);
    }
};
struct NoTile {
    static constexpr int bytes = 128;
};

template <class T, int max_dim_, int warpgroups, int stages_>
struct WarpgroupsBlock {
    static constexpr int max_dim = max_dim_, queries = 64 * warpgroups, threads = 128 * warpgroups, warps = 4 * warpgroups;
    static constexpr bool several_tokens = true;
    static constexpr int alignment = 1024;
    static constexpr int keys = 64, pass_keys = keys, first_key_step = keys, stages = stages_;
    static constexpr int m_tiles = 1, parts = 1, warp_keys = keys, blocks_per_sm = 1;
    using QTile = NoTile;
    using KvTile = PanelRows<keys, max_dim>;
};

template <class T, class Block_>
class WarpgroupsThread : public TilesThread<T, Block_> {
    using Base = TilesThread<T, Block_>;
    using Base::p_, Base::shared_, Base::lane_, Base::text_, Base::keys_, Base::o_, Base::softmax_;
    using KvTile = typename Block_::KvTile;
    static constexpr int max_dim = Block_::max_dim, stages = Block_::stages;
    kernels::FragmentA q_[max_dim / 16];

  public:
    using Base::Base;
    using Block = Block_;

    __device__ __forceinline__ void load_queries() {
#pragma unroll 1
        for (int tile = 0; tile < stages - 1; ++tile) this->store_new(tile);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int h = this->row_of(i);
            const T* const from = p_.q.at(text_, this->token_of(h), this->head_of(h));
#pragma unroll
            for (int k = 0; k < max_dim / 16; ++k)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = k * 16 + half * 8 + lane_ % 4 * 2;
                    q_[k][half * 2 + i] = column < p_.head_dim ? *reinterpret_cast<const std::uint32_t*>(from + column) : 0;
                }
        }
        this->append();
        device::clear(o_);
    }
    __device__ __forceinline__ void attend() {
        for (int tile = 0; this->first_key_of(tile) < keys_.end; ++tile) {
            kernels::wait_for_copies<stages - 2>();
            kernels::publish_shared_writes();
            __syncthreads();
            this->load_cached(tile + stages - 1);
            this->store_new(tile + stages - 1);
            const std::uint32_t k_tile = kernels::shared_address(this->stage_of(tile));
            kernels::FragmentC s[1][Block::keys / 8];
            kernels::begin_products();
#pragma unroll
            for (int k = 0; k < max_dim / 16; ++k)
                kernels::Product<T, Block::keys>::template start<kernels::Order::reduction>(s[0], q_[k], KvTile::by_columns(k_tile, k * 16), k > 0);
            kernels::commit_products();
            kernels::await_products<0>(s[0]);
            this->apply_rule(s, this->first_key_of(tile));
            softmax_.update(s, o_);
            kernels::FragmentA p[Block::keys / 16][1];
            device::as_operand_a<T>(p, s);
            kernels::begin_products();
            device::start_a_b<T, KvTile>(o_[0], p, k_tile + KvTile::bytes);
            kernels::commit_products();
            kernels::await_products<0>(o_[0]);
        }
    }
};

}  // namespace gradtile::attention::cuda::decoding

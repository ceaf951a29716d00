// The order in which the Hopper kernels compute blocks, compared with a sort by the visible pairs of blocks.
#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/attention/cuda/sm90/block_order.cuh>

namespace gradtile::attention::cuda {
namespace {

constexpr int block_keys = 128;

/// A call whose ranges are equal within each key block, so that the hulls of the kernels are exact.
struct OrderedCall {
    std::int64_t batch = 1, heads = 1, group = 1, queries = 1, keys = 1;
    bool differs_by_batch = false, differs_by_head = false, causal = false;
    std::vector<std::int32_t> ranges = {};  ///< [own batches, own heads, keys, 4]

    std::int64_t own_batches() const { return differs_by_batch ? batch : 1; }
    std::int64_t own_heads() const { return differs_by_head ? heads : 1; }
    std::int64_t key_blocks() const { return ceil_div(keys, block_keys); }
    void draw_ranges() {
        std::mt19937 random(3);
        const auto row = [&] {
            return static_cast<std::int32_t>(random() % static_cast<unsigned>(queries + 1));
        };
        for (std::int64_t head = 0; head < own_batches() * own_heads(); ++head)
            for (std::int64_t key = 0; key < keys; key += block_keys) {
                const std::array<std::int32_t, 4> block{row(), row(), row(), row()};
                for (std::int64_t n = 0; n < std::min<std::int64_t>(block_keys, keys - key); ++n)
                    ranges.insert(ranges.end(), block.begin(), block.end());
            }
    }
    Mask mask() const {
        return {.queries = queries, .keys = keys, .offset = keys - queries, .right = causal ? 0 : -1};
    }
    /// Whether one of the rows [row, row + rows) sees a key of the block.
    bool sees(std::int64_t batch_index, std::int64_t head, std::int64_t row, std::int64_t rows,
              std::int64_t key_block) const {
        const std::int64_t set = (differs_by_batch ? batch_index : 0) * own_heads() +
                                 (differs_by_head ? head : 0),
                           key = key_block * block_keys;
        const std::int32_t* const r = ranges.data() + (set * keys + key) * 4;
        for (std::int64_t i = row; i < std::min(row + rows, queries); ++i)
            if (((i >= r[0] && i < r[1]) || (i >= r[2] && i < r[3])) &&
                (!causal || key <= i + keys - queries))
                return true;
        return false;
    }
};

/// The blocks by decreasing work, then by number.
std::vector<int> sorted_blocks(const std::vector<int>& work) {
    std::vector<int> order(work.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>{},
                             [&](int block) { return work[static_cast<std::size_t>(block)]; });
    return order;
}

class BlockOrderOnHopper : public ::testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        int major = 0;
        gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
        if (major != 9) GTEST_SKIP() << "these kernels need compute capability 9.0";
    }
    template <int block_rows, OrderedBlocks ordered>
    static void expect_order(const OrderedCall& call) {
        SCOPED_TRACE(::testing::Message() << call.queries << " rows, " << call.keys << " keys, blocks of "
                                          << block_rows << " rows, causal " << call.causal);
        const Context gpu(Device::cuda(0));
        const Tensor ranges = from_host(gpu, call.ranges, {static_cast<std::int64_t>(call.ranges.size())});
        ResolvedOptions options;
        options.mask = call.mask();
        options.row_ranges = {.data = ranges.data<std::int32_t>(),
                              .batch_stride = call.differs_by_batch ? call.own_heads() * call.keys * 4 : 0,
                              .head_stride = call.differs_by_head ? call.keys * 4 : 0,
                              .key_stride = 4};
        const std::int64_t elements = row_ranges_elements(options.row_ranges, call.batch, call.heads,
                                                          call.queries, call.keys, options.packed);
        const Tensor scratch =
            from_host(gpu, std::vector<std::int32_t>(static_cast<std::size_t>(elements), -1), {elements});
        DeviceRowRanges read = launch_row_ranges(gpu, options, call.batch, call.heads, block_keys, scratch);
        launch_block_order<block_rows, ordered>(gpu, read, device::DeviceMask(options.mask),
                                                static_cast<int>(call.batch),
                                                {.heads = static_cast<int>(call.heads),
                                                 .group = static_cast<int>(call.group),
                                                 .qk_dim = 64,
                                                 .v_dim = 64});
        const std::vector<double> memory = to_host(gpu, scratch);
        const auto number_at = [&](const int* address) {
            return static_cast<int>(memory[static_cast<std::size_t>(address - scratch.data<std::int32_t>())]);
        };
        ASSERT_EQ(number_at(read.order.taken), 0);
        constexpr bool orders_rows = ordered == OrderedBlocks::rows;
        const std::int64_t heads_per_order = orders_rows ? 1 : call.group,
                           row_blocks = ceil_div(call.queries, std::int64_t{block_rows}),
                           blocks = orders_rows ? row_blocks : call.key_blocks();
        ASSERT_EQ(read.order.count, blocks);
        for (std::int64_t b = 0; b < call.batch; ++b)
            for (std::int64_t n = 0; n < call.heads / heads_per_order; ++n) {
                std::vector<int> work(static_cast<std::size_t>(blocks)), order;
                if (blocks <= device::max_ordered_blocks)
                    for (std::int64_t head = n * heads_per_order; head < (n + 1) * heads_per_order; ++head)
                        for (std::int64_t row = 0; row < row_blocks; ++row)
                            for (std::int64_t key = 0; key < call.key_blocks(); ++key)
                                work[static_cast<std::size_t>(orders_rows ? row : key)] +=
                                    call.sees(b, head, row * block_rows, block_rows, key) ? 1 : 0;
                const int* const own = read.order.of(static_cast<int>(b), static_cast<int>(n));
                for (std::int64_t i = 0; i < blocks; ++i) order.push_back(number_at(own + i));
                ASSERT_EQ(order, sorted_blocks(work)) << "batch " << b << " head " << n;
            }
    }
    static void expect_orders(OrderedCall call) {
        call.draw_ranges();
        expect_order<192, OrderedBlocks::rows>(call);
        expect_order<128, OrderedBlocks::rows>(call);
        expect_order<64, OrderedBlocks::keys>(call);
        expect_order<128, OrderedBlocks::keys>(call);
    }
};

TEST_F(BlockOrderOnHopper, IsByDecreasingNumberOfVisibleBlocks) {
    for (const bool differs_by_batch : {false, true})
        for (const bool differs_by_head : {false, true})
            for (const bool causal : {false, true})
                for (const auto& [queries, keys] : {std::pair{1500, 2100}, {2100, 1500}, {100, 40}})
                    expect_orders({.batch = 2,
                                   .heads = 6,
                                   .group = 3,
                                   .queries = queries,
                                   .keys = keys,
                                   .differs_by_batch = differs_by_batch,
                                   .differs_by_head = differs_by_head,
                                   .causal = causal});
}
/// More blocks than a thread block has threads.
TEST_F(BlockOrderOnHopper, IsByDecreasingNumberOfVisibleBlocksInLongCalls) {
    expect_orders({.queries = 40'000, .keys = 50'000, .causal = true});
}
TEST_F(BlockOrderOnHopper, IsThatOfTheBlocksWhereThereAreVeryMany) {
    OrderedCall call{.queries = 192 * (device::max_ordered_blocks + 1), .keys = 200};
    call.draw_ranges();
    expect_order<192, OrderedBlocks::rows>(call);
}

}  // namespace
}  // namespace gradtile::attention::cuda

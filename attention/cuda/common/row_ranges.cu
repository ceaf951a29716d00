// Reads a call's row ranges for the kernels of a pass.
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/cuda/common/row_ranges.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

constexpr int warps = 8;

static_assert(sizeof(KeyRows) == key_rows_bytes && sizeof(KeyBlockRows) == key_block_rows_bytes);

/// The call's ranges as it passed them: [B, H, keys, 4].
struct RangesOfCall {
    RowRanges ranges;
    int heads;  ///< H: 1 if the ranges are the same for all heads
    int queries, keys;
    PackedOffsets packed;
};

__device__ KeyBlockRows reduce_over_warp(KeyBlockRows x) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
        x.some.ranges[n] = {__reduce_min_sync(~0u, x.some.ranges[n].begin),
                            __reduce_max_sync(~0u, x.some.ranges[n].end)};
        x.all.ranges[n] = {__reduce_max_sync(~0u, x.all.ranges[n].begin),
                           __reduce_min_sync(~0u, x.all.ranges[n].end)};
    }
    return x;
}

/// One warp for each key block of each head.
__global__ void __launch_bounds__(32 * warps)
    read_row_ranges_kernel(const __grid_constant__ RangesOfCall call, DeviceRowRanges into,
                           KeyRows* into_keys, KeyBlockRows* into_blocks, int heads) {
    gradtile::cuda::device::await_predecessor();
    const std::int64_t index = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32;
    const int lane = static_cast<int>(threadIdx.x % 32), slot = static_cast<int>(index % into.block_count);
    const std::int64_t head = index / into.block_count;
    if (head >= heads) return;
    PackedOffsets::Range keys{0, call.keys};
    int block = slot, queries = call.queries, end_copy = into.padded_keys;
    if (call.packed) {
        // The last sequence whose blocks begin at or before the slot.
        int first = 0, last = call.packed.count;
        while (first < last) {
            const int middle = (first + last + 1) / 2;
            if (DeviceRowRanges::first_block(call.packed.keys(middle).begin, middle, into.block_keys) <=
                slot) {
                first = middle;
            } else {
                last = middle - 1;
            }
        }
        keys = call.packed.keys(first);
        block = slot - DeviceRowRanges::first_block(keys.begin, first, into.block_keys);
        const PackedOffsets::Range rows = call.packed.queries(first);
        queries = rows.end - rows.begin;
        end_copy = keys.end;
    }
    const int first_key = keys.begin + block * into.block_keys;
    KeyBlockRows seen;
    for (int key = first_key + lane; key < min(first_key + into.block_keys, end_copy); key += 32) {
        KeyRows rows = clipped_rows({}, 0);
        if (key < keys.end) {
            const int4 x =
                *reinterpret_cast<const int4*>(call.ranges.of_key(head / call.heads, head % call.heads, key));
            rows = clipped_rows({{{x.x, x.y}, {x.z, x.w}}}, queries);
        }
        into_keys[head * into.padded_keys + key] = rows;
        if (key < keys.end) seen.add({.some = rows, .all = rows});
    }
    seen = reduce_over_warp(seen);
    if (lane == 0) into_blocks[head * into.block_count + slot] = seen;
}

}  // namespace

DeviceRowRanges launch_row_ranges(const Context& ctx, const ResolvedOptions& options, std::int64_t batch,
                                  std::int64_t heads, int block_keys, const Tensor& scratch) {
    const RowRanges& ranges = options.row_ranges;
    const std::int64_t keys = options.mask.keys,
                       count = ranges ? heads_with_row_ranges(ranges, batch, heads) : 0;
    if (count == 0) return {};
    const std::int64_t padded_keys = padded_keys_of_ranges(keys),
                       blocks = key_blocks_of_ranges(keys, options.packed, block_keys);
    auto* const memory = scratch.data<std::int32_t>();
    auto* const key_rows = reinterpret_cast<KeyRows*>(memory);
    auto* const block_rows = reinterpret_cast<KeyBlockRows*>(key_rows + count * padded_keys);
    auto* const order = reinterpret_cast<int*>(block_rows + count * blocks);
    const int own_heads = ranges.head_stride == 0 ? 1 : static_cast<int>(heads);
    const DeviceRowRanges into{.keys = key_rows,
                               .blocks = block_rows,
                               .padded_keys = static_cast<int>(padded_keys),
                               .block_count = static_cast<int>(blocks),
                               .batch_step = ranges.batch_stride == 0 ? 0 : own_heads,
                               .head_step = ranges.head_stride == 0 ? 0 : 1,
                               .block_keys = block_keys,
                               .order = {.taken = order}};
    gradtile::cuda::launch(ctx, read_row_ranges_kernel, gradtile::cuda::blocks_for(count * blocks, warps),
                           {.threads = 32 * warps, .starts_early = true},
                           RangesOfCall{.ranges = ranges,
                                        .heads = own_heads,
                                        .queries = static_cast<int>(options.mask.queries),
                                        .keys = static_cast<int>(keys),
                                        .packed = PackedOffsets(options)},
                           into, key_rows, block_rows, static_cast<int>(count));
    return into;
}

}  // namespace gradtile::attention::cuda

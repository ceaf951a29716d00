// Makes the task tables for packed sequences.
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;

/// A sequence with n blocks has one task for each rank from 1 to n. Tasks are ordered by decreasing rank,
/// then by sequence. The grid has one block per sequence, and one for the rows or keys after the last
/// sequence.
__global__ void __launch_bounds__(threads)
    make_tasks_kernel(PackedOffsets offsets, PackedOrder order, int block, PackedTasks table) {
    gradtile::cuda::device::await_predecessor();
    const bool divides_rows = order == PackedOrder::last_rows_first;
    const auto blocks_of = [&](int sequence) {
        const auto [begin, end] = divides_rows ? offsets.queries(sequence) : offsets.keys(sequence);
        return (end - begin + block - 1) / block;
    };
    const int sequence = static_cast<int>(blockIdx.x), blocks = blocks_of(sequence);
    const auto [first_query, end_query] = offsets.queries(sequence);
    const auto [first_key, end_key] = offsets.keys(sequence);
    const bool is_rest = sequence == offsets.count;
    PackedTask task{.sequence = sequence,
                    .block = 0,
                    .first_query = first_query,
                    .queries = is_rest && !divides_rows ? 0 : end_query - first_query,
                    .first_key = first_key,
                    .keys = is_rest && divides_rows ? 0 : end_key - first_key,
                    .unused = {}};
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    for (int rank = warp + 1; rank <= blocks; rank += warps) {
        int earlier = 0;
        for (int other = lane; other <= offsets.count; other += 32) {
            const int other_blocks = blocks_of(other);
            earlier += max(0, other_blocks - rank) + (other < sequence && other_blocks >= rank ? 1 : 0);
        }
        earlier = __reduce_add_sync(~0u, earlier);
        task.block = order == PackedOrder::first_keys_first ? blocks - rank : rank - 1;
        if (lane == 0 && earlier < table.count) table.first[earlier] = task;
    }
    if (!is_rest) return;
    int tasks = 0;
    for (int other = lane; other <= offsets.count; other += 32) tasks += blocks_of(other);
    tasks = __reduce_add_sync(~0u, tasks);
    // With wrong offsets there may be more tasks than the table holds.
    if (threadIdx.x == 0) *table.counters() = {.tasks = min(tasks, table.count), .taken = 0};
    for (int n = tasks + static_cast<int>(threadIdx.x); n < table.count; n += threads)
        table.first[n].sequence = -1;
}

}  // namespace

PackedTasks make_packed_tasks(cudaStream_t stream, const PackedOffsets& offsets, PackedOrder order, int block,
                              PackedTask* table) {
    const int total = order == PackedOrder::last_rows_first ? offsets.total_queries : offsets.total_keys;
    const PackedTasks tasks{table, static_cast<int>(packed_task_count(total, offsets.count, block))};
    gradtile::cuda::launch_on(stream, make_tasks_kernel, dim3(static_cast<unsigned>(offsets.count + 1)),
                              {.threads = threads, .starts_early = true}, offsets, order, block, tasks);
    return tasks;
}

}  // namespace gradtile::attention::cuda

// Clears query rows that see no key, and keys that no row sees.
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/internal/seen_part.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

constexpr int clear_threads = 128;

/// Each thread block clears the heads of one row [H, D] of x [B, S, H, D] if the row takes no part.
template <class T>
__global__ void __launch_bounds__(clear_threads)
    clear_unseen_kernel(device::TensorView<T> x, int heads, int columns, std::int64_t length, RowKind kind,
                        Mask mask, PackedOffsets packed) {
    const std::int64_t batch = blockIdx.x / length, position = blockIdx.x % length;
    const bool is_query = kind == RowKind::query;
    const device::SequenceOfPair sequence =
        is_query ? device::SequenceOfPair::from_query(mask, packed, batch, position)
                 : device::SequenceOfPair::from_key(mask, packed, batch, position);
    const std::int64_t first = is_query ? sequence.first_query : sequence.first_key;
    const SeenRanges seen = seen_ranges(sequence.mask);
    const IndexRange kept = is_query ? seen.rows : seen.keys;
    if (!sequence.is_rest && position - first >= kept.begin && position - first < kept.end) return;
    for (int e = static_cast<int>(threadIdx.x); e < heads * columns; e += clear_threads)
        x.head(batch, e / columns).row(position)[e % columns] = T{};
}

}  // namespace

void clear_unseen(const Context& ctx, const ResolvedOptions& options, RowKind kind, const Tensor& x) {
    if (ctx.is_planning() || x.elements() == 0) return;
    const std::int64_t rows = x.size(0) * x.size(1);
    check(rows <= INT32_MAX, "attention: ", x, " has more than 2^31 - 1 rows");
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        gradtile::cuda::launch(ctx, clear_unseen_kernel<T>, dim3(static_cast<unsigned>(rows)),
                               {.threads = clear_threads}, device::tensor_view<T>(x),
                               static_cast<int>(x.size(2)), static_cast<int>(x.size(3)), x.size(1), kind,
                               options.mask, PackedOffsets(options));
    });
}

}  // namespace gradtile::attention::cuda

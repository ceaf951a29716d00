#pragma once
/// Exchanges of one bucket's numbers between the processes that own parts of it.
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/shard_layout.h>

namespace gradtile {

/// Sends every process's ranges of a bucket to all others. `full` holds the bucket's numbers, which are
/// `numbers_per_64` for 64 elements of the flat block.
void gather_parts(const Context& exchange, const Communicator& communicator, const ShardBucket& bucket,
                  const Tensor& full, std::int64_t numbers_per_64 = parameter_alignment);

/// to = from, of one dtype and contiguous. `host`: one of them is in host memory that the device addresses. A
/// copy engine then copies, so that the GPU's processors compute meanwhile.
void copy_part(const Context& ctx, const Tensor& to, const Tensor& from, bool host);

}  // namespace gradtile

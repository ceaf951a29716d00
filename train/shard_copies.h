#pragma once
/// ShardCopies (--shard-copies 1): copies of the shards of a run with config.zero, so that the run continues
/// from memory when processes are lost. Every process holds
///
///     a copy of its own shard, of the newest step that all processes have copied
///     two copies of the previous rank's shard (rank 0: of the last rank's), written in turn
///
/// An update changes a shard in place, so a loss may find the shards of some processes at step N, and those
/// of others at N - 1. No copy of step N - 1 is overwritten before all processes have those of step N. So the
/// shards of N or of N - 1 are all there, unless a process and the next one are lost together. Once they are
/// restored, the copies of the lost processes are made again (keep()).
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/train/common_state.h>
#include <gradtile/train/parallel/communicator.h>

namespace gradtile {

class ShardCopies {
  public:
    /// How many copies of a shard a process holds.
    static constexpr std::int64_t copies = 3;

    /// `shard`: the memory of this process's shard. `max_bytes`: of the largest shard of any process. The
    /// communicator must outlive the copies.
    ShardCopies(const Context& ctx, std::vector<std::span<std::byte>> shard, std::size_t max_bytes,
                const Communicator& communicator);

    /// Collective: copies the shards, which are those of `step` in every process.
    void keep(const Context& ctx, std::int64_t step);
    /// Adds the steps of the copies.
    void describe(HeldState& held) const;
    /// Collective: makes every process's shard the one of `step`, which newest_common_state() has chosen from
    /// `held`.
    void restore(const Context& ctx, std::int64_t step, std::span<const HeldState> held);
    /// Forgets all copies.
    void clear() { forget_after(-1); }

  private:
    /// Calls visit(words, transit) for the shard piece by piece; `transit` is memory for one piece.
    template <class Visit>
    void visit_pieces(const Visit& visit) const;
    void read_shard(std::int64_t first_word, const Tensor& words) const;
    void write_shard(std::int64_t first_word, const Tensor& words) const;
    void forget_after(std::int64_t step);

    std::vector<std::span<std::byte>> shard_;
    const Communicator& communicator_;
    std::unique_ptr<attention::Ring> ring_;
    Tensor own_;
    std::array<Tensor, 2> neighbours_;
    Tensor transit_;  // what is sent or received at one time
    std::int64_t own_step_ = -1;
    std::array<std::int64_t, 2> neighbour_steps_{-1, -1};
};

}  // namespace gradtile

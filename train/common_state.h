#pragma once
/// CommonState: the state from which the processes of a run continue after a loss.
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace gradtile {

/// The state that one process has in memory. A step is -1 where there is none.
struct HeldState {
    bool has_settings = false;  ///< false: this process replaces a lost one, and has nothing yet
    bool is_sharded = false;    ///< the state is this process's shard only
    std::int64_t step = -1;
    bool is_evaluated = false;                             ///< the step's evaluation, if one is due, is done
    std::int64_t own_copy = -1;                            ///< see ShardCopies
    std::array<std::int64_t, 2> neighbour_copies{-1, -1};  ///< see ShardCopies

    bool has_neighbour_copy(std::int64_t of_step) const {
        return neighbour_copies[0] == of_step || neighbour_copies[1] == of_step;
    }
};
std::string to_text(const HeldState& held);
/// Throws Error unless the text is one of to_text().
HeldState held_state_from(const std::string& text);

struct CommonState {
    int rank = 0;  ///< the process whose settings and position the others take
    /// The step whose whole state is in memory; -1: none, all processes return to the newest checkpoint.
    std::int64_t step = -1;
    bool is_own = false;  ///< this process's tensors are those of the step
};

/// Chooses the newest state. `held`: what each process has, by rank. Throws Error if no process has the
/// run's settings.
CommonState newest_common_state(std::span<const HeldState> held, int own_rank);

}  // namespace gradtile

#include <gradtile/train/common_state.h>

#include <algorithm>
#include <sstream>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

/// A step counts once for its update, and once when it is evaluated. The copy of a shard is made after the
/// update, but the process has begun the next step if its own shard is newer.
std::int64_t progress_at(const HeldState& held, std::int64_t step) {
    if (held.step == step) return 2 * step + (held.is_evaluated ? 1 : 0);
    return held.own_copy == step ? 2 * step + 1 : -1;
}

/// Whether a process of the group has the shard of rank `rank` at a step.
bool has_shard(std::span<const HeldState> held, std::size_t rank, std::int64_t step) {
    return held[rank].step == step || held[rank].own_copy == step ||
           held[(rank + 1) % held.size()].has_neighbour_copy(step);
}

/// Returns the newest step of which all shards are there; -1: none.
std::int64_t newest_whole_step(std::span<const HeldState> held) {
    std::int64_t newest = -1;
    for (const HeldState& h : held)
        for (const std::int64_t step : {h.step, h.own_copy}) {
            bool is_whole = step > newest;
            for (std::size_t rank = 0; is_whole && rank < held.size(); ++rank)
                is_whole = has_shard(held, rank, step);
            if (is_whole) newest = step;
        }
    return newest;
}

}  // namespace

std::string to_text(const HeldState& held) {
    return concat(held.has_settings, ' ', held.is_sharded, ' ', held.step, ' ', held.is_evaluated, ' ',
                  held.own_copy, ' ', held.neighbour_copies[0], ' ', held.neighbour_copies[1]);
}

HeldState held_state_from(const std::string& text) {
    std::istringstream words(text);
    HeldState held;
    words >> held.has_settings >> held.is_sharded >> held.step >> held.is_evaluated >> held.own_copy >>
        held.neighbour_copies[0] >> held.neighbour_copies[1];
    check(!words.fail(), "a process sent '", text, "'; expected the state that it has in memory");
    return held;
}

CommonState newest_common_state(std::span<const HeldState> held, int own_rank) {
    CommonState common;
    if (std::ranges::any_of(held, &HeldState::is_sharded)) {
        common.step = newest_whole_step(held);
    } else {
        for (const HeldState& h : held) common.step = std::max(common.step, h.step);
        check(common.step >= 0, "no process has the state of the run");
    }
    const auto fitness = [&](const HeldState& h) {
        return std::pair{h.has_settings, progress_at(h, common.step)};
    };
    const auto source = std::ranges::max_element(held, {}, fitness);
    check(source->has_settings, "no process has the state of the run");
    common.rank = static_cast<int>(source - held.begin());
    const HeldState& own = held[static_cast<std::size_t>(own_rank)];
    // A process that has not evaluated the step takes the whole state of one that has.
    common.is_own = common.step >= 0 && own.step == common.step &&
                    (own.is_sharded || own.is_evaluated == source->is_evaluated);
    return common;
}

}  // namespace gradtile

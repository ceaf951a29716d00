#include <gradtile/train/common_state.h>

#include <algorithm>
#include <sstream>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

/// A step counts once for its update, and once when it is evaluated.
std::int64_t progress_of(const HeldState& held) {
    return held.step < 0 ? -1 : 2 * held.step + (held.is_evaluated ? 1 : 0);
}

}  // namespace

std::string to_text(const HeldState& held) {
    return concat(held.has_settings, ' ', held.is_sharded, ' ', held.step, ' ', held.is_evaluated);
}

HeldState held_state_from(const std::string& text) {
    std::istringstream words(text);
    HeldState held;
    words >> held.has_settings >> held.is_sharded >> held.step >> held.is_evaluated;
    check(!words.fail(), "a process sent '", text, "'; expected the state that it has in memory");
    return held;
}

CommonState newest_common_state(std::span<const HeldState> held, int own_rank) {
    const auto newest = std::ranges::max_element(held, {}, [](const HeldState& h) {
        return std::pair{h.has_settings, progress_of(h)};
    });
    check(newest->has_settings, "no process has the state of the run");
    CommonState common{.rank = static_cast<int>(newest - held.begin())};
    if (newest->is_sharded) return common;
    check(newest->step >= 0, "no process has the state of the run");
    common.step = newest->step;
    common.is_own = progress_of(held[static_cast<std::size_t>(own_rank)]) == progress_of(*newest);
    return common;
}

}  // namespace gradtile

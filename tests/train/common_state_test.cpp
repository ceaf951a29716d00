#include <gradtile/train/common_state.h>

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr std::int64_t n = 7;

/// Returns the states through which a process with shard copies passes, beginning with the update of step n.
std::vector<HeldState> moments_of_a_step() {
    HeldState held{.has_settings = true,
                   .is_sharded = true,
                   .step = n - 1,
                   .is_evaluated = true,
                   .own_copy = n - 1,
                   .neighbour_copies = {n - 2, n - 1}};
    std::vector<HeldState> moments{held};
    held.step = n;  // updated
    held.is_evaluated = false;
    moments.push_back(held);
    held.neighbour_copies[0] = -1;  // receives the neighbour's shard
    moments.push_back(held);
    held.neighbour_copies[0] = n;  // waits until all have received
    moments.push_back(held);
    held.own_copy = n;  // all have
    moments.push_back(held);
    return moments;
}
constexpr std::size_t received = 3, kept = 4;

/// Calls visit(held) for all moments that processes may be at together. A process updates when all have
/// computed their gradients, and keeps its copy when all have received theirs.
template <class Visit>
void visit_moments(std::size_t processes, const Visit& visit) {
    const std::vector<HeldState> moments = moments_of_a_step();
    std::vector<std::size_t> at(processes, 0);
    for (;;) {
        const auto [first, last] = std::ranges::minmax(at);
        std::vector<HeldState> held;
        for (const std::size_t moment : at) held.push_back(moments[moment]);
        if (last < kept || first >= received) visit(held);
        std::size_t digit = 0;
        while (digit < processes && ++at[digit] == moments.size()) at[digit++] = 0;
        if (digit == processes) return;
    }
}

bool has_shard(const std::vector<HeldState>& held, std::size_t rank, std::int64_t step) {
    return held[rank].step == step || held[rank].own_copy == step ||
           held[(rank + 1) % held.size()].has_neighbour_copy(step);
}

TEST(CommonState, ExistsAtEveryMomentUnlessNeighboursAreLost) {
    for (const std::size_t processes : {std::size_t{2}, std::size_t{3}, std::size_t{5}})
        visit_moments(processes, [&](const std::vector<HeldState>& before) {
            for (std::size_t lost = 0; lost + 1 < std::size_t{1} << processes; ++lost) {
                std::vector<HeldState> held = before;
                bool loses_neighbours = false;
                for (std::size_t rank = 0; rank < processes; ++rank) {
                    if ((lost >> rank & 1) == 0) continue;
                    held[rank] = {};
                    loses_neighbours = loses_neighbours || (lost >> (rank + 1) % processes & 1) != 0;
                }
                const CommonState common = newest_common_state(held, 0);
                if (loses_neighbours) {
                    EXPECT_EQ(common.step, -1);
                    continue;
                }
                EXPECT_TRUE(common.step == n || common.step == n - 1) << common.step;
                for (std::size_t rank = 0; rank < processes; ++rank)
                    EXPECT_TRUE(has_shard(held, rank, common.step)) << rank;
                const HeldState& source = held[static_cast<std::size_t>(common.rank)];
                EXPECT_TRUE(source.step == common.step || source.own_copy == common.step);
                EXPECT_EQ(common.is_own, held[0].step == common.step);
            }
        });
}

TEST(CommonState, IsTheNewestWholeStateWithoutShards) {
    const HeldState older{.has_settings = true, .step = 4, .is_evaluated = true};
    HeldState newest{.has_settings = true, .step = 5};
    EXPECT_EQ(newest_common_state(std::vector{HeldState{}, older, newest}, 1).rank, 2);
    EXPECT_EQ(newest_common_state(std::vector{HeldState{}, older, newest}, 1).step, 5);
    EXPECT_FALSE(newest_common_state(std::vector{HeldState{}, older, newest}, 1).is_own);
    EXPECT_TRUE(newest_common_state(std::vector{HeldState{}, older, newest}, 2).is_own);
    HeldState evaluated = newest;
    evaluated.is_evaluated = true;
    EXPECT_EQ(newest_common_state(std::vector{newest, evaluated}, 0).rank, 1);
    EXPECT_FALSE(newest_common_state(std::vector{newest, evaluated}, 0).is_own);
    EXPECT_THROW(newest_common_state(std::vector{HeldState{}, HeldState{}}, 0), Error);
}

/// Without copies, shards are all there only if no process is lost and all are at the same step.
TEST(CommonState, NeedsEveryShardWithoutCopies) {
    const HeldState shard{.has_settings = true, .is_sharded = true, .step = 4};
    HeldState next = shard;
    next.step = 5;
    EXPECT_EQ(newest_common_state(std::vector{shard, shard}, 0).step, 4);
    EXPECT_EQ(newest_common_state(std::vector{shard, next}, 0).step, -1);
    EXPECT_EQ(newest_common_state(std::vector{HeldState{}, next}, 0).step, -1);
    EXPECT_EQ(newest_common_state(std::vector{HeldState{}, next}, 0).rank, 1);
    EXPECT_FALSE(newest_common_state(std::vector{HeldState{}, next}, 0).is_own);
}

TEST(CommonState, TextsAreReadBack) {
    for (const HeldState& held : moments_of_a_step())
        EXPECT_EQ(to_text(held_state_from(to_text(held))), to_text(held));
    EXPECT_THROW(held_state_from("1 1 4"), Error);
}

}  // namespace
}  // namespace gradtile

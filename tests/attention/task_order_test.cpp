#include <gradtile/attention/cuda/common/task_order.cuh>

#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace gradtile::attention::cuda::device {
namespace {

/// The tasks that an order gives to the indices from 0 on, without duplicates.
template <class Order>
std::set<std::pair<int, int>> tasks_of(int count, const Order& order) {
    std::set<std::pair<int, int>> tasks;
    for (int index = 0; index < count; ++index) {
        const TaskOrder::Task task = order(index);
        tasks.emplace(task.batch_head, task.part);
    }
    return tasks;
}

TEST(TaskOrder, HasEachPartOfEachHeadOnce) {
    for (const int heads : {1, 2, 7, 16})
        for (const int parts : {1, 2, 15, 16, 17, 64})
            for (int set_heads = 1; set_heads <= heads; ++set_heads) {
                const auto order = TaskOrder::with_sets(heads, parts, set_heads);
                std::set<std::pair<int, int>> all;
                for (int head = 0; head < heads; ++head)
                    for (int part = 0; part < parts; ++part) all.emplace(head, part);
                EXPECT_EQ(tasks_of(heads * parts, order), all);
                EXPECT_EQ(tasks_of(heads * parts, [&](int index) { return order.longest_first(index); }),
                          all);
            }
}

TEST(TaskOrder, WithRowRangesTheLongestPartsOfAllHeadsPrecedeTheSets) {
    const auto order = TaskOrder::with_sets(/*batch_head_count=*/5, /*part_count=*/32, /*set_heads=*/2);
    for (int index = 0; index < 10; ++index) {
        EXPECT_EQ(order.longest_first(index).batch_head, index % 5);
        EXPECT_EQ(order.longest_first(index).part, index / 5);
    }
    // Then head 0, which fills no set, and heads 1 and 2 in turn.
    for (int index = 0; index < 30; ++index) {
        EXPECT_EQ(order.longest_first(10 + index).batch_head, 0);
        EXPECT_EQ(order.longest_first(10 + index).part, 2 + index);
    }
    for (int index = 0; index < 60; ++index) {
        EXPECT_EQ(order.longest_first(40 + index).batch_head, 1 + index % 2);
        EXPECT_EQ(order.longest_first(40 + index).part, 2 + index / 2);
    }
}

}  // namespace
}  // namespace gradtile::attention::cuda::device

#include <gradtile/tools/plan/overlap.h>

#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

using Pieces = std::vector<QueuedPiece>;

TEST(Overlap, IndependentQueuesTakeTheLongerTime) {
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1}, {2}}, Pieces{}, 0.5), 3);
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{}, Pieces{{1}, {2}}, 0.5), 3);
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1}, {2}}, Pieces{{2.5}}, 0), 3);
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1}, {2}}, Pieces{{4}}, 0), 4);
    EXPECT_EQ(overlapped_seconds(Pieces{}, Pieces{}, 0), 0);
}

/// For gradients, a transfer starts when its computation piece and the previous transfer are done.
TEST(Overlap, ATransferWaitsForItsPieceAndForTheOneBeforeIt) {
    const Pieces backward{{1}, {1}, {1}};
    EXPECT_DOUBLE_EQ(overlapped_seconds(backward, Pieces{{0.5, 0}, {0.5, 2}}, 0), 3.5);
    EXPECT_DOUBLE_EQ(overlapped_seconds(backward, Pieces{{1.5, 0}, {1.5, 1}, {1.5, 2}}, 0), 1 + 4.5);
}

/// For values, a computation piece starts when its transfer and the previous piece are done.
TEST(Overlap, ComputationWaitsForItsTransfer) {
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1, 0}, {1, 1}}, Pieces{{0.25}, {0.5}}, 0), 2.25);
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1, 0}, {1, 1}}, Pieces{{0.25}, {2}}, 0), 3.25);
}

/// A t-second transfer during computation delays the computation by t c / (1 + c), because the computation is
/// slower by the factor 1 + c meanwhile.
TEST(Overlap, ContentionDelaysComputationWhileATransferRuns) {
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{2}}, Pieces{{1}}, 0.25), 1 + (2 - 1 / 1.25));
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1}, {1}}, Pieces{{0.5, 0}}, 0.25),
                     1 + 0.5 + (1 - 0.5 / 1.25));
    EXPECT_DOUBLE_EQ(overlapped_seconds(Pieces{{1}}, Pieces{{4}}, 0.25), 4);
}

TEST(Overlap, QueuesThatWaitForEachOtherAreRefused) {
    EXPECT_THROW(overlapped_seconds(Pieces{{1, 0}}, Pieces{{1, 0}}, 0), Error);
    EXPECT_THROW(overlapped_seconds(Pieces{{1, 3}}, Pieces{{1}}, 0), Error);
}

}  // namespace
}  // namespace gradtile

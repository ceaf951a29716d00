// The limits that available_memory() follows.
#include <sys/resource.h>

#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/os/internal/control_group.h>
#include <gradtile/core/os/internal/operating_system.h>

#include <support/temporary_directory.h>

namespace gradtile {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// A folder in place of "/".
class ControlGroups : public ::testing::Test {
  protected:
    void write(const std::string& name, const std::string& text) {
        std::filesystem::create_directories((place_ / name).parent_path());
        place_.write(name, text);
    }
    std::size_t rest() const { return os::rest_of_control_groups(place_.path()); }

    test::TemporaryDirectory place_;
};

TEST_F(ControlGroups, WithoutLimitsAreUnlimited) {
    EXPECT_EQ(rest(), unlimited);
    write("proc/self/cgroup", "0::/\n");
    write("sys/fs/cgroup/memory.max", "max\n");
    write("sys/fs/cgroup/memory.current", "5\n");
    EXPECT_EQ(rest(), unlimited);
}
TEST_F(ControlGroups, OfAContainerLimitAtTheMount) {
    write("proc/self/cgroup", "0::/docker/0123\n");
    write("sys/fs/cgroup/memory.max", "1000\n");
    write("sys/fs/cgroup/memory.current", "300\n");
    EXPECT_EQ(rest(), 700u);
    write("sys/fs/cgroup/memory.stat", "anon 200\nactive_file 60\ninactive_file 40\n");
    EXPECT_EQ(rest(), 800u) << "the page cache can be freed";
    write("sys/fs/cgroup/memory.current", "2000\n");
    EXPECT_EQ(rest(), 0u);
}
TEST_F(ControlGroups, TheLeastRestOfAGroupAndTheGroupsAroundItCounts) {
    write("proc/self/cgroup", "0::/user.slice/job\n");
    write("sys/fs/cgroup/user.slice/job/memory.max", "max\n");
    write("sys/fs/cgroup/user.slice/job/memory.current", "10\n");
    write("sys/fs/cgroup/user.slice/memory.max", "500\n");
    write("sys/fs/cgroup/user.slice/memory.current", "100\n");
    EXPECT_EQ(rest(), 400u);
    write("sys/fs/cgroup/user.slice/job/memory.max", "50\n");
    EXPECT_EQ(rest(), 40u);
}
TEST_F(ControlGroups, OfTheFirstVersionHaveAPathOfTheirOwn) {
    write("proc/self/cgroup", "7:cpuset:/other\n5:cpu,memory:/slurm/job\n0::/\n");
    write("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "3000\n");
    write("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "1000\n");
    write("sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n");
    write("sys/fs/cgroup/memory/other/memory.usage_in_bytes", "1\n");
    EXPECT_EQ(rest(), 2000u);
}

TEST(AvailableMemory, IsAtMostTheRestOfTheAddressSpace) {
    constexpr std::size_t rest = std::size_t{64} << 20;
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_AS, &old), 0);
    const rlimit lower{.rlim_cur = os::address_space_bytes() + rest, .rlim_max = old.rlim_max};
    if (lower.rlim_cur > old.rlim_max) GTEST_SKIP() << "a lower limit is set";
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &lower), 0);
    const std::size_t found = available_memory(Device::cpu());
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &old), 0);
    EXPECT_LE(found, rest);
    EXPECT_GT(found, rest / 2);
}

}  // namespace
}  // namespace gradtile

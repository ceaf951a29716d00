#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include <gradtile/core/check.h>
#include <gradtile/tools/doctor/doctor.h>

namespace gradtile {
namespace {

using testing::HasSubstr;
using State = Finding::State;
using Need = RunLibrary::Need;

RunLibrary missing_library(Need need) {
    return {"libx", "x files", need, []() -> std::string { throw Error("no libx; apt-get install libx1"); }};
}

TEST(Doctor, OnlyALibraryThatEveryRunOnTheHardwareNeedsStopsEveryRun) {
    const struct {
        Need need;
        int gpus;
        State state;
        bool can_run;
    } cases[] = {
        {Need::every_run, 0, State::missing, false},  {Need::some_runs, 0, State::missing, true},
        {Need::gpu, 0, State::unused, true},          {Need::gpu, 1, State::missing, false},
        {Need::several_gpus, 1, State::unused, true}, {Need::several_gpus, 2, State::missing, true},
    };
    for (const auto& c : cases) {
        const std::vector<Finding> findings = examine_libraries({missing_library(c.need)}, c.gpus);
        ASSERT_EQ(findings.size(), 1u);
        EXPECT_EQ(findings[0].state, c.state);
        EXPECT_EQ(can_run(findings), c.can_run);
        EXPECT_THAT(findings[0].detail, HasSubstr("needed for x files"));
    }
}

TEST(Doctor, AMissingLibraryIsReportedWithTheRunsOwnError) {
    const Finding finding = examine_libraries({missing_library(Need::some_runs)}, 0).front();
    EXPECT_EQ(finding.detail, "needed for x files: no libx; apt-get install libx1");
}

TEST(Doctor, UnusedLibrariesAreNotLoaded) {
    bool is_loaded = false;
    const RunLibrary library{"libx", "x files", Need::gpu, [&] {
                                 is_loaded = true;
                                 return std::string("1");
                             }};
    examine_libraries({library}, 0);
    EXPECT_FALSE(is_loaded);
    EXPECT_EQ(examine_libraries({library}, 1).front().detail, "1: x files");
    EXPECT_TRUE(is_loaded);
}

TEST(Doctor, EveryLibraryHasANameAndAPurpose) {
    std::set<std::string> names;
    for (const RunLibrary& library : run_libraries()) {
        EXPECT_TRUE(names.insert(library.name).second) << library.name;
        EXPECT_FALSE(library.purpose.empty()) << library.name;
    }
}

TEST(Doctor, TheBuildsOwnLibrariesAreFound) {
    const std::vector<Finding> findings = examine_libraries(run_libraries(), 0);
    EXPECT_TRUE(can_run(findings));
    for (const Finding& finding : findings) {
        if (finding.item != "HDF5") continue;
        EXPECT_THAT(finding.detail, testing::MatchesRegex("1\\.[0-9.]+: checkpoints"));
    }
}

}  // namespace
}  // namespace gradtile

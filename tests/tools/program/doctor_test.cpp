// gradtile doctor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>

#include <support/sanitized.h>

#include "program.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

std::map<std::string, nlohmann::json> findings_of(const Outcome& outcome) {
    std::map<std::string, nlohmann::json> findings;
    for (const nlohmann::json& finding : outcome.json_lines())
        EXPECT_TRUE(findings.emplace(finding.at("item"), finding).second) << finding;
    return findings;
}

TEST(Doctor, PrintsOneLinePerItem) {
    const Outcome outcome = run({"doctor"});
    expect_success(outcome);
    std::istringstream lines(outcome.out);
    std::string line;
    std::getline(lines, line);
    EXPECT_THAT(line, MatchesRegex("item +state +detail *"));
    int count = 0;
    for (; std::getline(lines, line); ++count)
        EXPECT_THAT(line, MatchesRegex("[A-Za-z0-9/ ]+ (ok|missing|unused)  +.+"));
    EXPECT_EQ(count, 12);  // CPU, memory, GPU and nine libraries
}

TEST(Doctor, SaysWhyARunUsesNoGpu) {
    const Outcome outcome = run({"doctor", "--json"});
    expect_success(outcome);
    const auto findings = findings_of(outcome);
    EXPECT_THAT(findings.at("CPU").at("detail"), MatchesRegex("[0-9]+ cores?, .+"));
    EXPECT_THAT(findings.at("memory").at("detail"), HasSubstr("GiB available"));
    EXPECT_EQ(findings.at("GPU").at("state"), "unused");
    EXPECT_THAT(findings.at("GPU").at("detail"), HasSubstr("--device cpu"));
    EXPECT_EQ(findings.at("cuBLAS").at("state"), "unused");
}

/// Runs the program where the loader finds damaged files in place of PCRE2 and the MPI plug-in.
TEST(Doctor, LibraryThatCannotBeLoadedIsNamedWithItsPackage) {
    if (sanitized) GTEST_SKIP() << "a sanitized program searches its RPATH before LD_LIBRARY_PATH";
    const TemporaryDirectory place;
    for (const char* name : {"libpcre2-8.so.0", "libpcre2-8.so", "libgradtile_mpi.so"})
        place.write(name, "not a library, but longer than the header of an ELF file, which has 64 bytes....");
    const char* const others = std::getenv("LD_LIBRARY_PATH");
    const Outcome outcome =
        run({"doctor", "--json"},
            {.environment = {{"LD_LIBRARY_PATH", concat(place.path().string(), ':', others ? others : "")}}});
    expect_success(outcome);  // a run without BPE and with one process needs neither
    const auto findings = findings_of(outcome);
    EXPECT_EQ(findings.at("MPI").at("state"), "missing");
    EXPECT_THAT(findings.at("MPI").at("detail"), HasSubstr("apt-get install openmpi-bin"));
    EXPECT_EQ(findings.at("PCRE2").at("state"), "missing");
    EXPECT_THAT(findings.at("PCRE2").at("detail"), HasSubstr("needed for BPE tokenizers"));
    EXPECT_THAT(findings.at("PCRE2").at("detail"),
                HasSubstr(GRADTILE_HAVE_PCRE2 ? "libpcre2-8-0" : "libpcre2-dev"));
    EXPECT_EQ(findings.at("HDF5").at("state"), "ok");
}

}  // namespace
}  // namespace gradtile::test

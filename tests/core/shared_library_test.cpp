#include <gradtile/core/shared_library.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(SharedLibrary, CallsAFunctionOfTheLibrary) {
    const SharedLibrary mathematics("test", {"libm-of-no-such-version.so", "libm.so.6"});
    double (*magnitude)(double) = nullptr;
    mathematics.find("fabs", magnitude);
    EXPECT_EQ(magnitude(-3.0), 3.0);
}

TEST(SharedLibrary, MissingLibraryIsNamedWithItsRemedy) {
    EXPECT_THAT(message_of([] {
                    SharedLibrary("test", {"libabsent.so.1", "libabsent.so"}, "apt-get install libabsent1");
                }),
                AllOf(StartsWith("test: libabsent.so.1 cannot be loaded: "),
                      EndsWith("; apt-get install libabsent1"), Not(HasSubstr("\n"))));
}

TEST(SharedLibrary, MissingFunctionIsNamed) {
    const SharedLibrary mathematics("test", {"libm.so.6"});
    void (*absent)() = nullptr;
    EXPECT_EQ(message_of([&] { mathematics.find("no_such_function", absent); }),
              "test: the installed libm.so.6 has no no_such_function");
}

TEST(SharedLibrary, HasAnotherNameOnMacos) {
    EXPECT_EQ(macos_name("libpcre2-8.so.0"), "libpcre2-8.0.dylib");
    EXPECT_EQ(macos_name("libz.so"), "libz.dylib");
    EXPECT_EQ(macos_name("/opt/lib/libz.so.1"), "/opt/lib/libz.so.1");
    EXPECT_EQ(macos_name("libz.1.dylib"), "libz.1.dylib");
}

}  // namespace
}  // namespace gradtile

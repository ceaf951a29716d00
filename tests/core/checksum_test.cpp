#include <gradtile/core/io/checksum.h>

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace gradtile {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text));
}

std::vector<std::byte> random_bytes(std::size_t n, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(generator());
    return bytes;
}

TEST(Crc32c, GivesThePublishedValues) {
    // Expected values: RFC 3720, appendix B.4, and the check value in the CRC catalogue.
    EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
    EXPECT_EQ(crc32c(std::vector(32, std::byte{0x00})), 0x8a9136aau);
    EXPECT_EQ(crc32c(std::vector(32, std::byte{0xff})), 0x62a8ab43u);
    std::vector<std::byte> ascending(32);
    for (std::size_t i = 0; i < 32; ++i) ascending[i] = static_cast<std::byte>(i);
    EXPECT_EQ(crc32c(ascending), 0x46dd794eu);
    EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, IsTheSameWithAndWithoutTheInstruction) {
    for (const std::size_t n : {0, 1, 7, 8, 9, 4096, 49'151, 49'152, 49'153, 300'001}) {
        const auto bytes = random_bytes(n, static_cast<std::uint32_t>(n));
        EXPECT_EQ(crc32c(bytes, 77), detail::crc32c_portable(bytes, 77)) << n;
    }
}

TEST(Crc32c, CombinesTwoParts) {
    const auto bytes = random_bytes(200'000, 1);
    const std::span all(bytes);
    for (const std::size_t cut : {0, 1, 3, 65'536, 123'457, 200'000}) {
        const auto first = all.first(cut);
        const auto second = all.subspan(cut);
        EXPECT_EQ(crc32c(second, crc32c(first)), crc32c(all));
        EXPECT_EQ(crc32c_combine(crc32c(first), crc32c(second), second.size()), crc32c(all));
    }
}

// The definition: sums over big-endian 16-bit words with end-around carry.
std::uint32_t fletcher32_by_definition(std::span<const std::byte> bytes) {
    std::uint64_t sum1 = 0;
    std::uint64_t sum2 = 0;
    const auto fold = [](std::uint64_t& sum) {
        while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    };
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
        const auto high = static_cast<std::uint64_t>(bytes[i]);
        const auto low = i + 1 < bytes.size() ? static_cast<std::uint64_t>(bytes[i + 1]) : 0;
        sum1 += high << 8 | low;
        fold(sum1);
        sum2 += sum1;
        fold(sum2);
    }
    return static_cast<std::uint32_t>(sum2 << 16 | sum1);
}

TEST(Fletcher32, MatchesItsDefinition) {
    for (const std::size_t n : {0, 1, 2, 3, 127, 128, 129, 130, 32'767, 32'768, 32'770, 100'001}) {
        for (const int kind : {0, 1, 2}) {
            auto bytes = random_bytes(n, static_cast<std::uint32_t>(n));
            if (kind == 1)
                bytes.assign(
                    n,
                    std::byte{0xff});  // every sum is a multiple of 65535, and has its largest possible value
            if (kind == 2) bytes.assign(n, std::byte{0});
            EXPECT_EQ(fletcher32(bytes), fletcher32_by_definition(bytes)) << n << ' ' << kind;
        }
    }
}

}  // namespace
}  // namespace gradtile

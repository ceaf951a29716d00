#include <array>
#include <cstring>

#include <gradtile/core/io/checksum.h>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace gradtile {

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;

// Polynomials over GF(2) modulo the CRC's polynomial; bit 31 is the coefficient of x^0. Appending n zero
// bytes to a message multiplies its CRC register by x^(8n).
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ ((b & 1u) ? kPolynomial : 0u);
    }
    return product;
}

std::uint32_t power_of_x8(std::uint64_t exponent) {
    std::uint32_t result = 0x80000000u;  // 1
    std::uint32_t square = 0x00800000u;  // x^8
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1u) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

constexpr std::array<std::uint32_t, 256> make_table(std::uint32_t polynomial) {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t value = i;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) ? polynomial : 0u);
        table[i] = value;
    }
    return table;
}
constexpr auto kTable = make_table(kPolynomial);

#ifdef __SSE4_2__

std::uint64_t word_at(const std::byte* p) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, sizeof word);
    return word;
}

// The instruction starts one word per cycle and has a latency of three cycles, so three independent streams
// are needed. Streams are long enough that the two multiplications that join them cost little.
constexpr std::size_t kStream = std::size_t{16} << 10;

std::uint32_t update(std::uint32_t state, const std::byte* p, std::size_t n) {
    static const std::uint32_t one_stream = power_of_x8(kStream);
    for (; n >= 3 * kStream; p += 3 * kStream, n -= 3 * kStream) {
        std::uint64_t a = state;
        std::uint64_t b = 0;
        std::uint64_t c = 0;
        for (std::size_t i = 0; i < kStream; i += 8) {
            a = _mm_crc32_u64(a, word_at(p + i));
            b = _mm_crc32_u64(b, word_at(p + kStream + i));
            c = _mm_crc32_u64(c, word_at(p + 2 * kStream + i));
        }
        const std::uint32_t ab =
            multiply(static_cast<std::uint32_t>(a), one_stream) ^ static_cast<std::uint32_t>(b);
        state = multiply(ab, one_stream) ^ static_cast<std::uint32_t>(c);
    }
    std::uint64_t wide = state;
    for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, word_at(p));
    state = static_cast<std::uint32_t>(wide);
    for (; n > 0; ++p, --n) state = _mm_crc32_u8(state, static_cast<unsigned char>(*p));
    return state;
}

#endif

}  // namespace

std::uint32_t detail::crc32c_portable(std::span<const std::byte> bytes, std::uint32_t previous) {
    std::uint32_t state = ~previous;
    for (const std::byte b : bytes) {
        state = kTable[(state ^ static_cast<std::uint32_t>(b)) & 0xffu] ^ (state >> 8);
    }
    return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
#ifdef __SSE4_2__
    return ~update(~previous, bytes.data(), bytes.size());
#else
    return detail::crc32c_portable(bytes, previous);
#endif
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) {
    return multiply(first, power_of_x8(second_length)) ^ second;
}

std::uint32_t fletcher32(std::span<const std::byte> bytes) {
    // With words w_0 .. w_(n-1): sum1 = sum w_i, sum2 = sum (n - i) w_i, both modulo 65535, where a non-zero
    // sum that is a multiple of 65535 is written 65535. Swapping a word's bytes multiplies it by 256 modulo
    // 65535, so words are summed in the machine's (little-endian) order, and the result is swapped once at
    // the end.
    //
    // In each block, lane l sums words l, l + kLanes, ...: low[l] = sum over rows, high[l] = sum over the
    // partial sums low[l], in which row r's words have the weight rows - r. uint32 holds 256 rows: 65535 *
    // 256 * 257 / 2 < 2^32. 32 lanes and their sums fit into the AVX2 registers. The vector types are
    // explicit, because GCC 12 compiles plain loops to AVX2 code that is six times slower.
    constexpr std::size_t kLanes = 32, kVector = 8, kVectors = kLanes / kVector;
    using Words [[gnu::vector_size(kVector * sizeof(std::uint16_t))]] = std::uint16_t;
    using Sums [[gnu::vector_size(kVector * sizeof(std::uint32_t))]] = std::uint32_t;
    constexpr std::size_t kRows = 256;
    constexpr std::uint64_t kModulus = 65535;
    std::uint64_t sum1 = 0;
    std::uint64_t sum2 = 0;
    bool any = false;

    const std::byte* p = bytes.data();
    std::size_t words = bytes.size() / 2;
    while (words >= kLanes) {
        const std::size_t rows = words / kLanes < kRows ? words / kLanes : kRows;
        Sums low[kVectors] = {};
        Sums high[kVectors] = {};
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t v = 0; v < kVectors; ++v) {
                Words words_of_row;
                std::memcpy(&words_of_row, p + (r * kVectors + v) * sizeof(Words), sizeof(Words));
                low[v] += __builtin_convertvector(words_of_row, Sums);
                high[v] += low[v];
            }
        }
        std::uint64_t block1 = 0;
        std::uint64_t block2 = 0;  // sum over the block of (words in block - i) w_i
        for (std::size_t l = 0; l < kLanes; ++l) {
            const std::uint64_t low_l = low[l / kVector][l % kVector],
                                high_l = high[l / kVector][l % kVector];
            block1 += low_l;
            block2 += kLanes * high_l - l * low_l;
        }
        any = any || block1 != 0;
        sum2 = (sum2 + sum1 * (rows * kLanes) + block2) % kModulus;
        sum1 = (sum1 + block1) % kModulus;
        p += rows * kLanes * 2;
        words -= rows * kLanes;
    }
    const auto add = [&](std::uint32_t word) {
        any = any || word != 0;
        sum1 = (sum1 + word) % kModulus;
        sum2 = (sum2 + sum1) % kModulus;
    };
    for (; words > 0; --words, p += 2) {
        add(static_cast<std::uint32_t>(p[0]) | static_cast<std::uint32_t>(p[1]) << 8);
    }
    // The last byte is a big-endian word's high half, so it is the low half here: the sums are swapped below.
    if (bytes.size() % 2 != 0) add(static_cast<std::uint32_t>(p[0]));

    const auto written = [any](std::uint64_t sum) {
        const std::uint64_t swapped = sum * 256 % kModulus;
        return static_cast<std::uint32_t>(any && swapped == 0 ? kModulus : swapped);
    };
    return written(sum2) << 16 | written(sum1);
}

std::uint32_t crc32(std::span<const std::byte> bytes) {
    static constexpr auto table = make_table(0xedb88320u);
    std::uint32_t state = ~0u;
    for (const std::byte byte : bytes)
        state = state >> 8 ^ table[(state ^ std::to_integer<std::uint32_t>(byte)) & 255u];
    return ~state;
}

}  // namespace gradtile

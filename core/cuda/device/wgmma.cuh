#pragma once
/// Asynchronous warpgroup products on tensor cores (wgmma, sm_90a): C [64, n] += A [64, 16] B [16, n], for
/// 16-bit operands with float32 sums. B is in shared memory, A in shared memory or in registers. PTX ISA
/// 9.7.15 "Asynchronous warpgroup level matrix multiply-accumulate instructions".
///
/// A warp's accumulators are 16 rows of C as FragmentC tiles with eight columns each. Between
/// begin_products() and await_products(), the accumulators and the operands in registers must not be used.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>

namespace gradtile::cuda::device {

/// The operand layout in shared memory: 64-byte or 128-byte rows whose 16-byte pieces are swizzled, as TMA
/// writes them. Adjacent elements in a row differ in the summed index (Order::reduction) or in C's row or
/// column index (Order::output).
enum class Order : std::uint8_t { reduction, output };

/// Describes an operand to the hardware. `row_bytes` is 64 or 128; the columns that fit into a row are a
/// panel. `panel_bytes` is the distance between panels. Only Order::output uses it, because there one product
/// may read several panels.
template <int row_bytes>
__device__ __forceinline__ std::uint64_t operand_description(std::uint32_t address, int panel_bytes) {
    static_assert(row_bytes == 64 || row_bytes == 128);
    constexpr std::uint64_t swizzle = row_bytes == 128 ? 1 : 2;
    constexpr std::uint64_t eight_rows = 8 * row_bytes;
    return (address & 0x3ffff) >> 4 | static_cast<std::uint64_t>(panel_bytes >> 4) << 16 |
           (eight_rows >> 4) << 32 | swizzle << 62;
}

/// Orders accesses to registers, and earlier products, before the products that follow.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of products that were started since the last call.
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Tells the compiler that asynchronous products change these registers before this point.
template <int tiles>
__device__ __forceinline__ void changed_by_products(float (&c)[tiles][4]) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[i][e]));
}
/// Waits until all product groups, except the latest `groups`, are complete. `c` are the completed groups'
/// accumulators.
template <int groups, class... Accumulators>
__device__ __forceinline__ void await_products(Accumulators&... c) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
    (changed_by_products(c), ...);
}

/// start(c, a, b, accumulate) starts c = A B + (accumulate ? c : 0) for n columns. Operands in shared memory
/// are given by their descriptions, an A in registers by its FragmentA. Specialised below.
template <class T, int n>
struct Product;

// One definition for each width and type follows, because the instruction text names every register.
// GRADTILE_NAMES_n and GRADTILE_REGISTERS_n list the accumulators for n columns, n / 2 registers.
// clang-format off
#define GRADTILE_NAMES(a, b, c, d, e, f, g, h) \
    "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define GRADTILE_REGISTERS(t)                                                  \
    "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3]),                \
    "+f"(c[t + 1][0]), "+f"(c[t + 1][1]), "+f"(c[t + 1][2]), "+f"(c[t + 1][3])
#define GRADTILE_NAMES_16 GRADTILE_NAMES(0, 1, 2, 3, 4, 5, 6, 7)
#define GRADTILE_NAMES_32 GRADTILE_NAMES_16 ", " GRADTILE_NAMES(8, 9, 10, 11, 12, 13, 14, 15)
#define GRADTILE_NAMES_48 GRADTILE_NAMES_32 ", " GRADTILE_NAMES(16, 17, 18, 19, 20, 21, 22, 23)
#define GRADTILE_NAMES_64 GRADTILE_NAMES_48 ", " GRADTILE_NAMES(24, 25, 26, 27, 28, 29, 30, 31)
#define GRADTILE_NAMES_80 GRADTILE_NAMES_64 ", " GRADTILE_NAMES(32, 33, 34, 35, 36, 37, 38, 39)
#define GRADTILE_NAMES_96 GRADTILE_NAMES_80 ", " GRADTILE_NAMES(40, 41, 42, 43, 44, 45, 46, 47)
#define GRADTILE_NAMES_112 GRADTILE_NAMES_96 ", " GRADTILE_NAMES(48, 49, 50, 51, 52, 53, 54, 55)
#define GRADTILE_NAMES_128 GRADTILE_NAMES_112 ", " GRADTILE_NAMES(56, 57, 58, 59, 60, 61, 62, 63)
#define GRADTILE_NAMES_144 GRADTILE_NAMES_128 ", " GRADTILE_NAMES(64, 65, 66, 67, 68, 69, 70, 71)
#define GRADTILE_NAMES_160 GRADTILE_NAMES_144 ", " GRADTILE_NAMES(72, 73, 74, 75, 76, 77, 78, 79)
#define GRADTILE_NAMES_176 GRADTILE_NAMES_160 ", " GRADTILE_NAMES(80, 81, 82, 83, 84, 85, 86, 87)
#define GRADTILE_NAMES_192 GRADTILE_NAMES_176 ", " GRADTILE_NAMES(88, 89, 90, 91, 92, 93, 94, 95)
#define GRADTILE_NAMES_208 GRADTILE_NAMES_192 ", " GRADTILE_NAMES(96, 97, 98, 99, 100, 101, 102, 103)
#define GRADTILE_NAMES_224 GRADTILE_NAMES_208 ", " GRADTILE_NAMES(104, 105, 106, 107, 108, 109, 110, 111)
#define GRADTILE_NAMES_240 GRADTILE_NAMES_224 ", " GRADTILE_NAMES(112, 113, 114, 115, 116, 117, 118, 119)
#define GRADTILE_NAMES_256 GRADTILE_NAMES_240 ", " GRADTILE_NAMES(120, 121, 122, 123, 124, 125, 126, 127)
#define GRADTILE_REGISTERS_16 GRADTILE_REGISTERS(0)
#define GRADTILE_REGISTERS_32 GRADTILE_REGISTERS_16, GRADTILE_REGISTERS(2)
#define GRADTILE_REGISTERS_48 GRADTILE_REGISTERS_32, GRADTILE_REGISTERS(4)
#define GRADTILE_REGISTERS_64 GRADTILE_REGISTERS_48, GRADTILE_REGISTERS(6)
#define GRADTILE_REGISTERS_80 GRADTILE_REGISTERS_64, GRADTILE_REGISTERS(8)
#define GRADTILE_REGISTERS_96 GRADTILE_REGISTERS_80, GRADTILE_REGISTERS(10)
#define GRADTILE_REGISTERS_112 GRADTILE_REGISTERS_96, GRADTILE_REGISTERS(12)
#define GRADTILE_REGISTERS_128 GRADTILE_REGISTERS_112, GRADTILE_REGISTERS(14)
#define GRADTILE_REGISTERS_144 GRADTILE_REGISTERS_128, GRADTILE_REGISTERS(16)
#define GRADTILE_REGISTERS_160 GRADTILE_REGISTERS_144, GRADTILE_REGISTERS(18)
#define GRADTILE_REGISTERS_176 GRADTILE_REGISTERS_160, GRADTILE_REGISTERS(20)
#define GRADTILE_REGISTERS_192 GRADTILE_REGISTERS_176, GRADTILE_REGISTERS(22)
#define GRADTILE_REGISTERS_208 GRADTILE_REGISTERS_192, GRADTILE_REGISTERS(24)
#define GRADTILE_REGISTERS_224 GRADTILE_REGISTERS_208, GRADTILE_REGISTERS(26)
#define GRADTILE_REGISTERS_240 GRADTILE_REGISTERS_224, GRADTILE_REGISTERS(28)
#define GRADTILE_REGISTERS_256 GRADTILE_REGISTERS_240, GRADTILE_REGISTERS(30)

// r0 to r6 number the operands after the accumulators.
#define GRADTILE_PRODUCT(T, type, n, r0, r1, r2, r3, r4, r5, r6)                                                \
    template <>                                                                                                 \
    struct Product<T, n> {                                                                                      \
        template <Order order_a, Order order_b>                                                                 \
        __device__ __forceinline__ static void start(float (&c)[n / 8][4], std::uint64_t a, std::uint64_t b,    \
                                                     bool accumulate) {                                         \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0;\n"                                         \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GRADTILE_NAMES_##n \
                         "}, %" #r0 ", %" #r1 ", p, 1, 1, %" #r3 ", %" #r4 ";}"                                 \
                         : GRADTILE_REGISTERS_##n                                                               \
                         : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)),                                   \
                           "n"(order_a == Order::output ? 1 : 0), "n"(order_b == Order::output ? 1 : 0));       \
        }                                                                                                       \
        template <Order order_b>                                                                                \
        __device__ __forceinline__ static void start(float (&c)[n / 8][4], const std::uint32_t (&a)[4],         \
                                                     std::uint64_t b, bool accumulate) {                        \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r5 ", 0;\n"                                         \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" GRADTILE_NAMES_##n \
                         "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1, %" #r6 ";}"           \
                         : GRADTILE_REGISTERS_##n                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                                  \
                           "r"(static_cast<int>(accumulate)), "n"(order_b == Order::output ? 1 : 0));           \
        }                                                                                                       \
    };
#define GRADTILE_PRODUCTS(n, ...)                       \
    GRADTILE_PRODUCT(bfloat16, "bf16", n, __VA_ARGS__)  \
    GRADTILE_PRODUCT(float16, "f16", n, __VA_ARGS__)
GRADTILE_PRODUCTS(32, 16, 17, 18, 19, 20, 21, 22)
GRADTILE_PRODUCTS(64, 32, 33, 34, 35, 36, 37, 38)
GRADTILE_PRODUCTS(80, 40, 41, 42, 43, 44, 45, 46)
GRADTILE_PRODUCTS(96, 48, 49, 50, 51, 52, 53, 54)
GRADTILE_PRODUCTS(112, 56, 57, 58, 59, 60, 61, 62)
GRADTILE_PRODUCTS(128, 64, 65, 66, 67, 68, 69, 70)
GRADTILE_PRODUCTS(144, 72, 73, 74, 75, 76, 77, 78)
GRADTILE_PRODUCTS(160, 80, 81, 82, 83, 84, 85, 86)
GRADTILE_PRODUCTS(176, 88, 89, 90, 91, 92, 93, 94)
GRADTILE_PRODUCTS(192, 96, 97, 98, 99, 100, 101, 102)
GRADTILE_PRODUCTS(256, 128, 129, 130, 131, 132, 133, 134)
#undef GRADTILE_PRODUCTS
#undef GRADTILE_PRODUCT
#undef GRADTILE_REGISTERS_16
#undef GRADTILE_NAMES_16
#undef GRADTILE_REGISTERS_32
#undef GRADTILE_NAMES_32
#undef GRADTILE_REGISTERS_48
#undef GRADTILE_NAMES_48
#undef GRADTILE_REGISTERS_64
#undef GRADTILE_NAMES_64
#undef GRADTILE_REGISTERS_80
#undef GRADTILE_NAMES_80
#undef GRADTILE_REGISTERS_96
#undef GRADTILE_NAMES_96
#undef GRADTILE_REGISTERS_112
#undef GRADTILE_NAMES_112
#undef GRADTILE_REGISTERS_128
#undef GRADTILE_NAMES_128
#undef GRADTILE_REGISTERS_144
#undef GRADTILE_NAMES_144
#undef GRADTILE_REGISTERS_160
#undef GRADTILE_NAMES_160
#undef GRADTILE_REGISTERS_176
#undef GRADTILE_NAMES_176
#undef GRADTILE_REGISTERS_192
#undef GRADTILE_NAMES_192
#undef GRADTILE_REGISTERS_208
#undef GRADTILE_NAMES_208
#undef GRADTILE_REGISTERS_224
#undef GRADTILE_NAMES_224
#undef GRADTILE_REGISTERS_240
#undef GRADTILE_NAMES_240
#undef GRADTILE_REGISTERS_256
#undef GRADTILE_NAMES_256
#undef GRADTILE_REGISTERS
#undef GRADTILE_NAMES
// clang-format on

}  // namespace gradtile::cuda::device

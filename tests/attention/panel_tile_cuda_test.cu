// The Hopper kernels' building blocks, each against a plain computation: TMA box copies, and asynchronous
// products in every order and swizzle. Elements are small integers, so all sums are exact.
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda::device {
namespace {

using gradtile::cuda::TensorMap;

struct Maps {
    TensorMap a, b, c16;
    float* c;  ///< [64, columns of c]
    BoxPosition at_a, at_b;
    const float* numbers;  ///< 64 numbers
};

/// The product that a test computes.
enum class Kind { a_bt, a_b_from_registers, a_b, at_b };

/// One product's shapes. The product reads only b's columns from `first_column` on.
template <class T, Kind kind, int b_rows, int b_columns, int b_panel_columns, int first_column_>
struct Shapes {
    static constexpr int first_column = first_column_;
    // a is [64, depth], or [depth, 64] if transposed.
    static constexpr int depth = kind == Kind::a_bt ? b_columns : b_rows,
                         columns = kind == Kind::a_bt ? b_rows : b_columns - first_column;
    static constexpr bool a_is_transposed = kind == Kind::at_b;
    static constexpr int a_columns = a_is_transposed ? 64 : (depth + 31) / 32 * 32,
                         a_panel_columns = kind == Kind::a_bt    ? b_panel_columns
                                           : a_columns % 64 == 0 ? 64
                                                                 : 32;
    using ATile = PanelTile<a_is_transposed ? depth : 64, a_columns, a_panel_columns>;
    using BTile = PanelTile<b_rows, b_columns, b_panel_columns>;
    using CTile = PanelTile<64, columns % 32 == 0 ? columns : 32>;
    using Element = T;
};

template <class S, Kind kind>
__global__ void __launch_bounds__(128) product_kernel(const __grid_constant__ Maps p) {
    using T = typename S::Element;
    using ATile = typename S::ATile;
    using BTile = typename S::BTile;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ std::uint64_t memory_of_full;
    __shared__ __align__(16) float numbers[64];
    const std::uint32_t a = shared_address(shared), b = a + (ATile::bytes + 1023) / 1024 * 1024,
                        c16 = b + (BTile::bytes + 1023) / 1024 * 1024;
    const Barrier full(shared_address(&memory_of_full));
    if (threadIdx.x == 0) {
        full.initialize(1);
        publish_barriers();
        full.arrive_and_expect(ATile::bytes + BTile::bytes + static_cast<int>(sizeof numbers));
        ATile::load(a, p.a, p.at_a, full);
        BTile::load(b, p.b, p.at_b, full);
        load_bytes(shared_address(numbers), p.numbers, sizeof numbers, full);
    }
    __syncthreads();
    full.wait(0);

    FragmentC c[1][S::columns / 8];
    clear(c);
    FragmentA registers[S::depth / 16][1];
    if constexpr (kind == Kind::a_b_from_registers) {
        // Row-major elements as operand A, read through the tile's own offsets.
        for (int k = 0; k < S::depth / 16; ++k)
            for (int i = 0; i < 4; ++i) {
                const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8,
                          column = k * 16 + i / 2 * 8 + threadIdx.x % 4 * 2;
                const std::uint32_t address = a + column / ATile::panel_columns * ATile::panel_bytes +
                                              ATile::offset(row, column % ATile::panel_columns / 8) +
                                              column % 8 * 2;
                asm volatile("ld.shared.b32 %0, [%1];" : "=r"(registers[k][0][i]) : "r"(address));
            }
    }
    begin_products();
    if constexpr (kind == Kind::a_bt) start_a_bt<T, ATile, BTile>(c[0], a, b);
    const std::uint32_t b_columns = b + BTile::column_offset(S::first_column);
    if constexpr (kind == Kind::a_b_from_registers) start_a_b<T, BTile>(c[0], registers, b_columns);
    if constexpr (kind == Kind::a_b) start_a_b<T, ATile, BTile>(c[0], a, b_columns);
    if constexpr (kind == Kind::at_b) start_at_b<T, ATile, BTile>(c[0], a, b_columns);
    commit_products();
    await_products<0>(c[0]);

    const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
    for_each_element(c, [&](float& x, int, int n, int e) {
        const int row = warp_row + static_cast<int>(threadIdx.x) % 32 / 4 + e / 2 * 8;
        x += numbers[row];
        p.c[row * S::columns + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2] = x;
    });
    if constexpr (S::columns % 32 == 0) {
        using CTile = typename S::CTile;
        stage_rows<T, CTile>(c16 + warp_row * CTile::row_bytes, c);
        publish_shared_writes();
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 0; i < CTile::panels; ++i)
                store_box(p.c16, {i * CTile::panel_columns, 0, 0, 0}, c16 + i * CTile::panel_bytes);
            commit_stores();
            wait_until_stores_have_read();
        }
    }
}

class HopperTiles : public testing::Test {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
        int major = 0;
        gradtile::cuda::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
        if (major != 9) GTEST_SKIP() << "these kernels need compute capability 9.0";
    }
};

/// Integers from -4 to 4, [2, rows, 3, columns].
std::vector<double> integers(const Shape& shape, std::uint64_t seed) {
    std::vector<double> values(static_cast<std::size_t>(shape.elements()));
    std::uint64_t state = seed;
    for (double& x : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x = static_cast<double>(state >> 33) / (1u << 31) * 9 - 4.5;
        x = std::nearbyint(x);
    }
    return values;
}

/// Multiplies boxes that begin inside their tensors and extend beyond their ends, where elements count as
/// zeros.
template <class T, Kind kind, int b_rows, int b_columns, int b_panel_columns = b_columns % 64 == 0 ? 64 : 32,
          int first_column = 0>
void expect_exact_product() {
    using S = Shapes<T, kind, b_rows, b_columns, b_panel_columns, first_column>;
    SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", b " << b_rows << " x "
                                    << b_columns << " from column " << first_column << ", panels of "
                                    << b_panel_columns);
    const Context gpu(Device::cuda(0)), cpu(Device::cpu());
    const DType dtype = std::is_same_v<T, bfloat16> ? DType::bf16 : DType::f16;
    constexpr int batch = 1, head = 2, first_row = 3;
    const Shape a_shape{2, S::ATile::rows, 3, S::ATile::columns - 8}, b_shape{2, b_rows, 3, b_columns};
    const auto a = integers(a_shape, 1), b = integers(b_shape, 2);
    const auto element = [&](const std::vector<double>& x, const Shape& shape, int row, int column) {
        row += first_row;
        if (row >= shape[1] || column >= shape[3]) return 0.0;
        return x[static_cast<std::size_t>(((batch * shape[1] + row) * shape[2] + head) * shape[3] + column)];
    };
    const Tensor a_gpu = from_host(gpu, a, a_shape, dtype), b_gpu = from_host(gpu, b, b_shape, dtype);
    const Tensor c = empty(gpu, {64, S::columns}, DType::f32);
    constexpr int stored_rows = 61;
    const Tensor c16 = empty(gpu, {1, 64, 1, S::columns}, dtype);
    fill(gpu, c16, 7);
    std::vector<double> shift(64);
    for (int i = 0; i < 64; ++i) shift[static_cast<std::size_t>(i)] = i;
    const Tensor numbers = from_host(gpu, shift, {64}, DType::f32);
    const Maps maps{.a = tensor_map(a_gpu, S::ATile::rows, S::ATile::swizzle),
                    .b = tensor_map(b_gpu, b_rows, S::BTile::swizzle),
                    .c16 = tensor_map(c16.slice(1, 0, stored_rows), 64, S::CTile::swizzle),
                    .c = c.data<float>(),
                    .at_a = {0, first_row, head, batch},
                    .at_b = {0, first_row, head, batch},
                    .numbers = numbers.data<float>()};
    constexpr std::size_t bytes = S::ATile::bytes + S::BTile::bytes + S::CTile::bytes + 2048;
    gradtile::cuda::launch(gpu, product_kernel<S, kind>, 1, {.threads = 128, .shared_bytes = bytes}, maps);
    const std::vector<double> result = to_host(gpu, c), rounded = to_host(gpu, c16);
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < S::columns; ++j) {
            double sum = i;
            for (int k = 0; k < S::depth; ++k)
                sum += element(a, a_shape, S::a_is_transposed ? k : i, S::a_is_transposed ? i : k) *
                       element(b, b_shape, kind == Kind::a_bt ? j : k,
                               kind == Kind::a_bt ? k : first_column + j);
            const auto index = static_cast<std::size_t>(i * S::columns + j);
            ASSERT_EQ(result[index], sum) << "row " << i << ", column " << j;
            if (S::columns % 32 != 0) continue;
            if (i >= stored_rows) {
                ASSERT_EQ(rounded[index], 7) << "a row beyond the tensor was written: " << i;
            } else {
                ASSERT_NEAR(rounded[index], sum, std::abs(sum) / 256) << "row " << i << ", column " << j;
            }
        }
}

template <class T>
void expect_exact_products() {
    // 64-byte and 128-byte rows; one panel and several; every width that the attention kernels use.
    expect_exact_product<T, Kind::a_bt, 64, 32>();
    expect_exact_product<T, Kind::a_bt, 128, 64>();
    expect_exact_product<T, Kind::a_bt, 112, 192>();
    expect_exact_product<T, Kind::a_bt, 80, 256>();
    expect_exact_product<T, Kind::a_bt, 128, 96>();
    expect_exact_product<T, Kind::a_b_from_registers, 128, 32>();
    expect_exact_product<T, Kind::a_b_from_registers, 128, 64>();
    expect_exact_product<T, Kind::a_b_from_registers, 112, 128>();
    expect_exact_product<T, Kind::a_b_from_registers, 64, 96>();
    expect_exact_product<T, Kind::a_b_from_registers, 80, 256>();
    expect_exact_product<T, Kind::a_b, 128, 32>();
    expect_exact_product<T, Kind::a_b, 64, 64>();
    expect_exact_product<T, Kind::a_b, 64, 128>();
    expect_exact_product<T, Kind::at_b, 128, 32>();
    expect_exact_product<T, Kind::at_b, 128, 64>();
    expect_exact_product<T, Kind::at_b, 128, 128>();
    // The second half of the columns, in whole panels.
    expect_exact_product<T, Kind::a_bt, 64, 192, 32>();
    expect_exact_product<T, Kind::a_b_from_registers, 64, 192, 32, 96>();
    expect_exact_product<T, Kind::a_b_from_registers, 64, 256, 64, 128>();
    expect_exact_product<T, Kind::a_b, 64, 192, 32, 96>();
    expect_exact_product<T, Kind::a_b, 64, 256, 64, 128>();
    expect_exact_product<T, Kind::at_b, 64, 192, 32, 96>();
    expect_exact_product<T, Kind::at_b, 64, 256, 64, 128>();
}

TEST_F(HopperTiles, ProductsOfBoxesAreExactInBfloat16) {
    expect_exact_products<bfloat16>();
}
TEST_F(HopperTiles, ProductsOfBoxesAreExactInFloat16) {
    expect_exact_products<float16>();
}

struct PackedCopy {
    TensorMap from, to;
    PackedRows sequence;
    int row, head;
    bool to_is_packed;
};

/// Copies a packed sequence's box to the same position in another packed tensor, or to the first rows in a
/// tensor with a batch axis.
template <class Tile>
__global__ void packed_copy_kernel(const __grid_constant__ PackedCopy p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ std::uint64_t memory_of_full;
    const Barrier full(shared_address(&memory_of_full));
    const std::uint32_t tile = shared_address(shared);
    full.initialize(1);
    publish_barriers();
    full.arrive_and_expect(Tile::bytes);
    Tile::load(tile, p.from, packed_box(p.sequence, 0, p.row, p.head), full);
    full.wait(0);
    for (int i = 0; i < Tile::panels; ++i) {
        const int column = i * Tile::panel_columns;
        const BoxPosition position =
            p.to_is_packed ? packed_box(p.sequence, column, p.row, p.head) : BoxPosition{column, 0, 0, 0};
        store_box(p.to, position, tile + i * Tile::panel_bytes);
    }
    commit_stores();
    wait_until_stores_have_read();
}

/// Rows before and after a sequence are neither read nor written.
template <int columns>
void expect_boxes_end_with_their_sequence(int first, int length, int row) {
    SCOPED_TRACE(testing::Message() << columns << " columns, rows " << first << " to " << first + length
                                    << ", box from " << row);
    using Tile = PanelTile<64, columns>;
    const Context gpu(Device::cuda(0));
    constexpr int total = 100, heads = 3, head = 1;
    const Shape shape{1, total, heads, columns};
    const auto values = integers(shape, 3);
    const Tensor from = from_host(gpu, values, shape, DType::bf16), to = empty(gpu, shape, DType::bf16),
                 box = empty(gpu, {1, 64, 1, columns}, DType::bf16);
    fill(gpu, to, 7);
    fill(gpu, box, 7);
    ASSERT_TRUE(gradtile::cuda::has_packed_tensor_map(from));
    PackedCopy p{.from = packed_tensor_map(from, 64, Tile::swizzle),
                 .to = packed_tensor_map(to, 64, Tile::swizzle),
                 .sequence = {total, first, length},
                 .row = row,
                 .head = head,
                 .to_is_packed = true};
    const auto copy_box = [&] {
        gradtile::cuda::launch(gpu, packed_copy_kernel<Tile>, 1, {.threads = 1, .shared_bytes = Tile::bytes},
                               p);
    };
    copy_box();
    p.to = tensor_map(box, 64, Tile::swizzle);
    p.to_is_packed = false;
    copy_box();
    const std::vector<double> written = to_host(gpu, to), read = to_host(gpu, box);
    const auto index = [&](int i, int h, int j) {
        return static_cast<std::size_t>((i * heads + h) * columns + j);
    };
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < columns; ++j)
            ASSERT_EQ(read[static_cast<std::size_t>(i * columns + j)],
                      row + i < length ? values[index(first + row + i, head, j)] : 0)
                << "row " << i << ", column " << j;
    for (int i = 0; i < total; ++i)
        for (int h = 0; h < heads; ++h)
            for (int j = 0; j < columns; ++j) {
                const bool is_copied =
                    h == head && i >= first + row && i < first + std::min(length, row + 64);
                ASSERT_EQ(written[index(i, h, j)], is_copied ? values[index(i, h, j)] : 7)
                    << "row " << i << ", head " << h << ", column " << j;
            }
}

TEST_F(HopperTiles, BoxesOfPackedSequencesEndWithTheirSequence) {
    for (const auto& [first, length, row] : {std::tuple{0, 100, 0},
                                             {0, 100, 64},
                                             {0, 1, 0},
                                             {10, 63, 0},
                                             {10, 64, 0},
                                             {10, 65, 0},
                                             {10, 65, 64},
                                             {99, 1, 0},
                                             {40, 60, 0}}) {
        expect_boxes_end_with_their_sequence<32>(first, length, row);
        expect_boxes_end_with_their_sequence<64>(first, length, row);
        expect_boxes_end_with_their_sequence<128>(first, length, row);
    }
}

TEST_F(HopperTiles, TensorsThatTmaCannotReadAreRecognised) {
    const Context gpu(Device::cuda(0));
    const Tensor x = empty(gpu, {2, 16, 4, 64}, DType::bf16);
    EXPECT_TRUE(gradtile::cuda::has_tensor_map(x));
    EXPECT_TRUE(gradtile::cuda::has_tensor_map(x.transpose(1, 2)));
    EXPECT_FALSE(gradtile::cuda::has_tensor_map(x.transpose(2, 3))) << "elements of a row are not adjacent";
    EXPECT_FALSE(gradtile::cuda::has_tensor_map(x.slice(3, 1, 33))) << "rows begin at odd addresses";
    EXPECT_FALSE(gradtile::cuda::has_tensor_map(x.slice(1, 0, 1).expand({2, 16, 4, 64}))) << "stride 0";
    EXPECT_TRUE(gradtile::cuda::has_tensor_map(x.slice(1, 0, 1))) << "an axis of length 1 has any stride";
}

}  // namespace
}  // namespace gradtile::attention::cuda::device

#pragma once
/// Launches the kernels in kernel.cuh: one for each epilogue, order of B, and tile shape.
#include <array>
#include <utility>

#include <gradtile/core/gemm/internal/hopper_product.h>
#include <gradtile/core/gemm/device/kernel.cuh>

namespace gradtile::cuda {

namespace detail {

/// A map for boxes with `columns` (64 or 32) columns.
inline TensorMap matrix_map(const Tensor& x, int rows, int columns = 64) {
    return tensor_map(box_view(x), rows, columns == 64 ? Swizzle::bytes_128 : Swizzle::bytes_64);
}

template <class Policy>
void launch_product(const Context& ctx, const ProductOperands& operands) {
    using Epilogue = typename Policy::Epilogue;
    constexpr ProductTiles tiles = Policy::tiles;
    const Tensor& c = operands.to[0];
    const auto rows = static_cast<int>(c.size(0)), columns = static_cast<int>(c.size(1));
    const std::int64_t depth = operands.a.size(1);
    device::ProductParameters<Epilogue> p{};
    p.a = matrix_map(operands.a, Policy::ATile::box_rows);
    for (int i = 0; i < Epilogue::products; ++i) p.b[i] = matrix_map(operands.b[i], Policy::BTile::box_rows);
    for (int i = 0; i < Epilogue::outputs; ++i)
        p.to[i] = matrix_map(operands.to[i], 16, Policy::unit_columns);
    for (int i = 0; i < Epilogue::inputs; ++i)
        p.with[i] = matrix_map(operands.with[i], 16, Policy::unit_columns);
    if (operands.bias.defined()) p.bias = operands.bias.data<typename Epilogue::Element>();
    if (operands.column_sums.defined()) p.column_sums = operands.column_sums.data<float>();
    p.rows = rows;
    p.columns = columns;
    p.depth_blocks = static_cast<int>(ceil_div(depth, std::int64_t{tiles.depth}));
    p.order = {static_cast<int>(ceil_div(c.size(0), std::int64_t{tiles.rows() * tiles.cluster})),
               static_cast<int>(ceil_div(c.size(1), std::int64_t{Policy::columns}))};
    p.tiles = p.order.row_tiles * p.order.column_tiles;
    const int clusters = std::max(1, std::min(p.tiles, processors_of(ctx) / tiles.cluster));
    launch(ctx, device::product_kernel<Policy>, static_cast<unsigned>(clusters * tiles.cluster),
           {static_cast<unsigned>(ProductTiles::threads), Policy::bytes, /*starts_early=*/true}, p);
}

inline constexpr std::size_t product_tile_count = std::size(product_tiles);

/// Whether each element of product_tiles has a kernel.
template <class Epilogue, device::Order b>
constexpr std::array<bool, product_tile_count> existing_tiles() {
    return []<std::size_t... i>(std::index_sequence<i...>) {
        return std::array<bool, product_tile_count>{
            device::ProductPolicy<Epilogue, product_tiles[i], b>::exists...};
    }
    (std::make_index_sequence<product_tile_count>{});
}

}  // namespace detail

/// Calls f(TypeTag<T>{}) with the operands' C++ type.
template <class F>
auto visit_operand_type(const ProductOperands& operands, F&& f) {
    return operands.a.dtype() == DType::bf16 ? f(TypeTag<bfloat16>{}) : f(TypeTag<float16>{});
}

/// An epilogue's kernels for B operands with this order.
template <class Epilogue, device::Order order_b>
class ProductKernels {
    static constexpr auto exists = detail::existing_tiles<Epilogue, order_b>();
    static constexpr std::size_t count = [] {
        std::size_t sum = 0;
        for (const bool each : exists) sum += each;
        return sum;
    }();

  public:
    static constexpr std::array<std::uint64_t, count> numbers = [] {
        std::array<std::uint64_t, count> list{};
        std::size_t position = 0;
        for (std::size_t i = 0; i < exists.size(); ++i)
            if (exists[i]) list[position++] = product_tiles[i].number();
        return list;
    }();

    static void run(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
        const bool found = [&]<std::size_t... i>(std::index_sequence<i...>) {
            return (run_if<i>(ctx, operands, kernel) || ...);
        }
        (std::make_index_sequence<detail::product_tile_count>{});
        check(found, "gemm: no kernel has the number ", kernel);
    }

  private:
    template <std::size_t i>
    static bool run_if(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
        if constexpr (exists[i]) {
            if (product_tiles[i].number() == kernel) {
                detail::launch_product<device::ProductPolicy<Epilogue, product_tiles[i], order_b>>(ctx,
                                                                                                   operands);
                return true;
            }
        }
        return false;
    }
};

}  // namespace gradtile::cuda

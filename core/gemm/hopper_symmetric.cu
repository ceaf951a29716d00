// Symmetric products for Hopper.
#include <gradtile/core/gemm/internal/hopper_kernels.h>
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/core/gemm/device/launch.cuh>
#include <gradtile/core/gemm/device/symmetric.cuh>

namespace gradtile::cuda {
namespace {

using device::Order;

template <class Epilogue, Order order>
void launch_symmetric(const Context& ctx, const Tensor& result, const Tensor& x, const Epilogue& epilogue) {
    using Policy = device::ProductPolicy<Epilogue, symmetric_tiles, order>;
    static_assert(Policy::exists);
    const std::int64_t side = ceil_div(result.size(1), std::int64_t{symmetric_tiles.rows()});
    const std::int64_t depth = x.size(order == Order::reduction ? 2 : 1);
    check(side < 1 << 14 && side * (side + 1) / 2 * result.size(0) < std::int64_t{1} << 31,
          "symmetric_product: result ", result, " has too many tiles for one launch");
    device::ProductParameters<Epilogue> p{.epilogue = epilogue};
    p.a = p.b[0] = detail::matrix_map(x, Policy::ATile::box_rows);
    p.to[0] = detail::matrix_map(result, 16);
    p.to[1] = detail::matrix_map(result, 64);
    if (Epilogue::inputs > 0) p.with[0] = detail::matrix_map(x, 16);
    p.rows = p.columns = static_cast<int>(result.size(1));
    p.depth_blocks = static_cast<int>(ceil_div(depth, std::int64_t{ProductTiles::depth}));
    p.order = {static_cast<int>(side)};
    p.tiles = static_cast<int>(p.order.tiles_of_matrix() * result.size(0));
    launch(ctx, device::product_kernel<Policy>, static_cast<unsigned>(std::min(p.tiles, processors_of(ctx))),
           {static_cast<unsigned>(ProductTiles::threads), Policy::bytes, /*starts_early=*/true}, p);
}

}  // namespace

void run_compiled_symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                                    const SymmetricProduct& product) {
    using T = bfloat16;
    const auto& [a, b, c] = product.polynomial;
    switch (product.kind) {
        case SymmetricProduct::Kind::gram_of_rows:
            return launch_symmetric<device::StoreSymmetric<T>, Order::reduction>(ctx, result, x, {});
        case SymmetricProduct::Kind::gram_of_columns:
            return launch_symmetric<device::StoreSymmetric<T>, Order::output>(ctx, result, x, {});
        case SymmetricProduct::Kind::polynomial:
            return launch_symmetric<device::StorePolynomial<T>, Order::reduction>(
                ctx, result, x, {static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)});
    }
    refuse_unknown("symmetric_product: unknown kind");
}

}  // namespace gradtile::cuda

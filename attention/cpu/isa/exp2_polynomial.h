#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Computes 2^x on a small interval, for
/// every vector type.
namespace gradtile::attention::cpu {
namespace {

/// Returns 2^f for f in [-1/2, 1/2], by a degree-6 minimax polynomial. The result is exactly 1 for f = 0.
template <class V>
[[gnu::always_inline]] inline typename V::Vector exp2_polynomial(typename V::Vector f) {
    typename V::Vector p =
        V::fma(V::broadcast(0.00015353360504377633f), f, V::broadcast(0.0013398875016719103f));
    p = V::fma(p, f, V::broadcast(0.00961843691766262f));
    p = V::fma(p, f, V::broadcast(0.055503323674201965f));
    p = V::fma(p, f, V::broadcast(0.24022647738456726f));
    p = V::fma(p, f, V::broadcast(0.6931471824645996f));
    return V::fma(p, f, V::broadcast(1.0f));
}

}  // namespace
}  // namespace gradtile::attention::cpu

// Backward D 128: orders of products. usage: backward_exp [shape]
#include "common.h"
#include <cuda_bf16.h>
#include <gradtile/attention/cuda/sm90/forward.cuh>
#include <gradtile/attention/cuda/sm90/backward.cuh>
using namespace gradtile;
using namespace gradtile::attention;
using namespace gradtile::attention::cuda;
struct Shape_ { int b, h, s; bool causal; };
constexpr int D = 128;
using u16 = unsigned short;
struct Data { Shape_ x; u16 *q, *k, *v, *o, *d_o, *d_q, *d_k, *d_v; float *lse, *lse_log2, *delta, *sums; int* next; };

void forward(const Data& x) {
    constexpr HopperForwardTiles tiles = hopper_forward_tiles(D, false);
    using Policy = HopperForwardPolicy<D, D, false, HopperRule::products, tiles>;
    constexpr int shared = tiles.shared_bytes(D, D);
    const Shape_& s = x.x;
    HopperForwardParameters p{};
    p.q = make_map(x.q, s.b, s.s, s.h, D, tiles.rows(), false);
    p.k = make_map(x.k, s.b, s.s, s.h, D, tiles.keys, false);
    p.v = make_map(x.v, s.b, s.s, s.h, D, tiles.keys, false);
    p.o = make_map(x.o, s.b, s.s, s.h, D, 64, false);
    p.lse = x.lse; p.sizes = {s.h, 1, D, D};
    p.mask.queries = p.mask.keys = s.s; p.mask.left = 2 * s.s; p.mask.right = s.causal ? 0 : 2 * s.s;
    p.scale_log2 = 1.4426950408889634f / std::sqrt(float(D));
    p.row_blocks = (s.s + 127) / 128;
    p.order = device::TaskOrder::with_sets(s.b * s.h, p.row_blocks, s.b * s.h); p.tasks = s.b * s.h * p.row_blocks;
    const auto kernel = device::hopper_forward_kernel<bfloat16, Policy>;
    CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    kernel<<<132, tiles.threads(), shared>>>(p); CK(cudaGetLastError());
}
template <class K, class... A>
void start(K kernel, dim3 grid, int threads, int shared, const A&... a) {
    cudaLaunchAttribute at{}; at.id = cudaLaunchAttributeProgrammaticStreamSerialization; at.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c{}; c.gridDim = grid; c.blockDim = dim3(threads); c.dynamicSmemBytes = shared; c.attrs = &at; c.numAttrs = 1;
    CK(cudaLaunchKernelEx(&c, kernel, a...));
}
#include "finish_80.cuh"
int padded(const Shape_& s, int rows) { const int a = (s.s + rows - 1) / rows * rows; return (std::max(a, s.s) + 127) / 128 * 128; }
template <HopperBackwardTiles tiles>
void run(const Data& x) {
    using Policy = HopperBackwardPolicy<D, false, false, HopperRule::products, tiles>;
    using Shared = device::HopperBackwardShared<Policy>;
    const Shape_& s = x.x;
    HopperBackwardParameters p{};
    p.q = make_map(x.q, s.b, s.s, s.h, D, tiles.rows, false); p.d_o = make_map(x.d_o, s.b, s.s, s.h, D, tiles.rows, false);
    p.k = make_map(x.k, s.b, s.s, s.h, D, 128, false); p.v = make_map(x.v, s.b, s.s, s.h, D, 128, false);
    p.d_k = make_map(x.d_k, s.b, s.s, s.h, D, 64, false); p.d_v = make_map(x.d_v, s.b, s.s, s.h, D, 64, false);
    Bits16BackwardParameters& b = p.params;
    const long bs = (long)s.s * s.h * D, rs = (long)s.h * D;
    b.q = {x.q, bs, rs, D}; b.k = {x.k, bs, rs, D}; b.v = {x.v, bs, rs, D}; b.o = {x.o, bs, rs, D}; b.d_o = {x.d_o, bs, rs, D};
    b.d_q = {x.d_q, bs, rs, D}; b.d_k = {x.d_k, bs, rs, D}; b.d_v = {x.d_v, bs, rs, D};
    b.lse = x.lse; b.lse_log2 = x.lse_log2; b.delta = x.delta; b.d_q_sums = x.sums; b.next_task = x.next; b.batch_size = s.b;
    b.sizes = {s.h, 1, D, D}; b.padded_rows = padded(s, tiles.rows);
    b.mask.queries = b.mask.keys = s.s; b.mask.left = 2 * s.s; b.mask.right = s.causal ? 0 : 2 * s.s;
    const int key_blocks = (s.s + 127) / 128;
    b.scale = 1 / std::sqrt(float(D)); b.scale_log2 = 1.4426950408889634f * b.scale; b.dropout_scale = 1; b.last_keys_first = true;
    device::TaskOrder order(s.b * s.h, key_blocks, hopper_backward_row_bytes(D, D) * s.s);
    order.balance_sets(132);
    b.order = device::TaskOrder::with_sets(s.b * s.h, key_blocks, order.cached_heads);
    p.tasks = s.b * s.h * key_blocks;
    const long rows = (long)s.b * s.h * b.padded_rows;
    const auto kernel = device::hopper_backward_kernel<bfloat16, Policy>;
    static bool once = [&] { CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::bytes)); return true; }();
    (void)once;
    start(device::prepare_backward_kernel<bfloat16>, dim3(rows / device::prepared_rows), 256, 0, b, turn_tiles(tiles), D);
    start(kernel, dim3(std::min(p.tasks, 132)), tiles.threads(), Shared::bytes, p);
    if (tiles.rows == 80) start(finish_80_kernel, dim3(rows / 16), 256, 0, b);
    else start(device::finish_d_q_kernel<bfloat16, D>, dim3(rows / device::finished_rows), 128, 0, b);
}
struct Variant { const char* name; void (*run)(const Data&); };
const std::vector<Variant> variants = {
#include "backward_variants.h"
};
__global__ void difference(const u16* a, const u16* b, long n, float* out) {  // out: sum of squares of a - b, of b
    float d = 0, s = 0;
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        const float x = __uint_as_float((unsigned)a[i] << 16), y = __uint_as_float((unsigned)b[i] << 16);
        d += (x - y) * (x - y); s += y * y;
    }
    atomicAdd(out, d); atomicAdd(out + 1, s);
}
int main(int argc, char** argv) {
    const int only = argc > 1 ? std::atoi(argv[1]) : -1;
    const std::vector<Shape_> shapes = {{1, 16, 16384, false}, {16, 16, 1024, false}, {1, 16, 16384, true}, {4, 16, 4096, true}, {8, 16, 2048, true}, {16, 16, 1024, true}, {32, 16, 512, true}, {2, 8, 1000, false}};
    float* out; CK(cudaMalloc(&out, 8));
    for (int i = 0; i < (int)shapes.size(); ++i) {
        if (only >= 0 && only != i) continue;
        const Shape_ s = shapes[i];
        const long n = (long)s.b * s.h * s.s * D, rows = (long)s.b * s.h * (s.s + 256);
        Data x{s, random_bf16(n, 1), random_bf16(n, 2), random_bf16(n, 3), random_bf16(n, 4), random_bf16(n, 5), random_bf16(n, 6), random_bf16(n, 7), random_bf16(n, 8)};
        u16* first[3]; for (auto& f : first) f = random_bf16(n, 9);
        CK(cudaMalloc(&x.lse, rows * 4)); CK(cudaMalloc(&x.lse_log2, rows * 4)); CK(cudaMalloc(&x.delta, rows * 4)); CK(cudaMalloc(&x.sums, rows * D * 4)); CK(cudaMalloc(&x.next, 64));
        forward(x);
        const double flops = 10.0 * s.b * s.h * s.s * s.s * D * (s.causal ? 0.5 : 1);
        std::vector<std::vector<float>> ms(variants.size());
        std::vector<std::string> errors;
        for (const Variant& v : variants) {
            u16* const now[] = {x.d_q, x.d_k, x.d_v};
            for (u16* g : now) CK(cudaMemset(g, 0xff, n * 2));
            v.run(x); CK(cudaDeviceSynchronize());
            std::string e;
            for (int g = 0; g < 3; ++g) {
                if (&v == &variants[0]) CK(cudaMemcpy(first[g], now[g], n * 2, cudaMemcpyDeviceToDevice));
                CK(cudaMemset(out, 0, 8)); difference<<<512, 256>>>(now[g], first[g], n, out);
                float w[2]; CK(cudaMemcpy(w, out, 8, cudaMemcpyDeviceToHost));
                char t[40]; std::snprintf(t, 40, " %.1e%s", std::sqrt(w[0] / w[1]), w[0] < 1e-4f * w[1] ? "" : " WRONG"); e += t;
            }
            errors.push_back(e);
        }
        const int repeats = s.s >= 16384 ? 2 : 6;
        for (int r = 0; r < 5; ++r) for (size_t j = 0; j < variants.size(); ++j) ms[j].push_back(time_ms(repeats, [&](int) { variants[j].run(x); }));
        std::printf("\n%d,%d,%d,%d%s backward\n", s.b, s.h, s.s, D, s.causal ? " causal" : "");
        for (size_t j = 0; j < variants.size(); ++j)
            std::printf("  %-34s %8.4f ms (%.4f) %6.1f TFLOP/s  dQ dK dV:%s\n", variants[j].name, median(ms[j]), *std::min_element(ms[j].begin(), ms[j].end()), flops / median(ms[j]) / 1e9, errors[j].c_str());
        std::fflush(stdout);
        for (void* m : std::initializer_list<void*>{x.q, x.k, x.v, x.o, x.d_o, x.d_q, x.d_k, x.d_v, x.lse, x.lse_log2, x.delta, x.sums, x.next, first[0], first[1], first[2]}) CK(cudaFree(m));
    }
}

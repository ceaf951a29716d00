// Forward D 128: tiles, orders of tasks, clusters. usage: forward_exp [shape index]
#include "common.h"
#include <gradtile/attention/cuda/sm90/forward.cuh>
using namespace gradtile;
using namespace gradtile::attention;
using namespace gradtile::attention::cuda;

struct Shape_ { int b, h, s, d; bool causal; };
struct Data { Shape_ x; unsigned short *q, *k, *v, *o; float* lse; };
struct Order { bool pairs; int set; int diag; };

constexpr int D =
#ifdef HEAD_DIM
    HEAD_DIM
#else
    128
#endif
    ;

template <HopperForwardTiles tiles>
void run(const Data& x, const Order& order) {
    using Policy = HopperForwardPolicy<D, D, false, HopperRule::products, tiles>;
    using Shared = device::HopperForwardShared<Policy>;
    constexpr int shared = tiles.shared_bytes(D, D);
    static_assert(shared <= 227 * 1024);
    const Shape_& s = x.x;
    HopperForwardParameters p{};
    p.q = make_map(x.q, s.b, s.s, s.h, D, tiles.rows(), D == 32);
    p.k = make_map(x.k, s.b, s.s, s.h, D, tiles.keys / tiles.cluster, D == 32);
    p.v = make_map(x.v, s.b, s.s, s.h, D, tiles.keys / tiles.cluster, D == 32);
    p.o = make_map(x.o, s.b, s.s, s.h, D, 64, D == 32);
    p.lse = x.lse;
    p.sizes = {s.h, 1, D, D};
    p.mask.queries = p.mask.keys = s.s; p.mask.offset = 0; p.mask.left = 2 * s.s; p.mask.right = s.causal ? 0 : 2 * s.s;
    p.pairs = order.pairs && tiles.cluster == 1;
    p.scale_log2 = 1.4426950408889634f / std::sqrt(float(D));
    p.diag = order.diag;
    p.row_blocks = (s.s + tiles.rows() - 1) / tiles.rows();
    const int parts = tiles.cluster > 1 ? (p.row_blocks + tiles.cluster - 1) / tiles.cluster : p.pairs ? (p.row_blocks + 1) / 2 : p.row_blocks;
    p.order = device::TaskOrder::with_sets(s.b * s.h, parts, std::min(order.set, s.b * s.h));
    p.tasks = s.b * s.h * parts;
    const auto kernel = device::hopper_forward_kernel<bfloat16, Policy>;
    static bool once = [&] { CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared)); return true; }();
    (void)once;
    cudaLaunchAttribute a[2]{};
    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; a[0].val.programmaticStreamSerializationAllowed = 1;
    a[1].id = cudaLaunchAttributeClusterDimension; a[1].val.clusterDim = {(unsigned)tiles.cluster, 1, 1};
    cudaLaunchConfig_t c{};
    c.gridDim = dim3(std::min(p.tasks * tiles.cluster, 132)); c.blockDim = dim3(tiles.threads()); c.dynamicSmemBytes = shared;
    c.attrs = a; c.numAttrs = tiles.cluster > 1 ? 2 : 1;
    CK(cudaLaunchKernelEx(&c, kernel, p));
}

__global__ void reference(Data x, int heads_step, float* worst) {
    // one block per (b, h, row) sample
    const Shape_ s = x.x;
    const int sample = blockIdx.x, bh = (sample * heads_step) % (s.b * s.h), row = (sample * 997) % s.s, b = bh / s.h, h = bh % s.h;
    extern __shared__ float sc[];
    __shared__ float part[256];
    const auto f = [](unsigned short u) { return __uint_as_float((unsigned)u << 16); };
    const long base = ((long)b * s.s * s.h + h) * D, stride = (long)s.h * D;
    const int keys = s.causal ? row + 1 : s.s;
    float m = -INFINITY;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        float t = 0;
        for (int c = 0; c < D; ++c) t += f(x.q[base + row * stride + c]) * f(x.k[base + j * stride + c]);
        sc[j] = t / sqrtf(float(D)); m = fmaxf(m, sc[j]);
    }
    part[threadIdx.x] = m; __syncthreads();
    for (int i = 0; i < blockDim.x; ++i) m = fmaxf(m, part[i]);
    __syncthreads();
    float sum = 0;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) { sc[j] = expf(sc[j] - m); sum += sc[j]; }
    part[threadIdx.x] = sum; __syncthreads();
    sum = 0;
    for (int i = 0; i < blockDim.x; ++i) sum += part[i];
    for (int column = threadIdx.x; column < D; column += blockDim.x) {
        float t = 0;
        for (int j = 0; j < keys; ++j) t += sc[j] * f(x.v[base + j * stride + column]);
        const float e = fabsf(t / sum - f(x.o[base + row * stride + column]));
        atomicMax((int*)worst, __float_as_int(isnan(e) ? INFINITY : e));
    }
    if (threadIdx.x == 0) {
        const float e = fabsf(m + logf(sum) - x.lse[((long)b * s.h + h) * s.s + row]);
        atomicMax((int*)worst + 1, __float_as_int(isnan(e) ? INFINITY : e));
    }
}

struct Variant { std::string name; std::function<void(const Data&, const Order&)> run; int rows, cluster; bool full_only; };
#define V(n, full, ...) {n, [](const Data& x, const Order& o) { run<HopperForwardTiles __VA_ARGS__>(x, o); }, HopperForwardTiles __VA_ARGS__.rows(), HopperForwardTiles __VA_ARGS__.cluster, full}
const std::vector<Variant> variants = {
#include "forward_variants.h"
};

int main(int argc, char** argv) {
    const bool profile = argc > 1 && std::strcmp(argv[1], "profile") == 0;
    const int only = profile ? 0 : argc > 1 ? std::atoi(argv[1]) : -1;
    std::vector<Shape_> shapes;
#if defined(HEAD_DIM) && HEAD_DIM == 64
    shapes = {{16, 32, 1024, 64, false}, {16, 32, 1024, 64, true}, {32, 32, 512, 64, true}, {64, 12, 1024, 64, true}, {8, 32, 2048, 64, true}, {4, 32, 4096, 64, true}, {1, 32, 16384, 64, false}, {1, 32, 16384, 64, true}};
#elif defined(HEAD_DIM) && HEAD_DIM == 256
    shapes = {{4, 8, 4096, 256, false}, {1, 8, 16384, 256, true}};
#else
    shapes = {{16, 16, 1024, 128, false}, {32, 16, 512, 128, true}, {16, 16, 1024, 128, true}, {8, 16, 2048, 128, true}, {4, 16, 4096, 128, true}, {1, 16, 16384, 128, false}, {1, 16, 16384, 128, true}};
#endif
    float* worst; CK(cudaMalloc(&worst, 8));
    CK(cudaFuncSetAttribute(reference, cudaFuncAttributeMaxDynamicSharedMemorySize, 16384 * 4));
    for (int i = 0; i < (int)shapes.size(); ++i) {
        if (only >= 0 && i != only) continue;
        const Shape_ s = shapes[i];
        const long n = (long)s.b * s.h * s.s * D;
        Data x{s, random_bf16(n, 1), random_bf16(n, 2), random_bf16(n, 3), random_bf16(n, 4), nullptr};
        CK(cudaMalloc(&x.lse, (long)s.b * s.h * s.s * 4));
        const double flops = 4.0 * s.b * s.h * s.s * s.s * D * (s.causal ? 0.5 : 1);
        struct Row { const Variant* v; Order o; std::vector<float> ms; std::string error; };
        std::vector<Row> rows;
        const int policy_set = std::min<long>(std::max<long>(1, (24l << 20) / (4l * s.s * D)), s.b * s.h);
        for (const Variant& v : variants) {
            if (v.full_only && s.causal) continue;
            const bool first = &v == &variants[0];
            const int row_blocks = (s.s + v.rows - 1) / v.rows;
            std::vector<Order> orders;
            if (v.cluster > 1) orders = {{false, 1, 0}, {false, std::max(1, 132 * 2 / row_blocks), 0}, {false, policy_set, 0}};
            else {
                const int one_wave = std::max(1, 132 / row_blocks);
                orders = {{true, policy_set, 0}, {true, 1, 0}, {true, std::max(1, 2 * 132 / row_blocks), 0}, {false, 1, 0}};
                if (!s.causal) orders.push_back({false, one_wave, 0});
                if (first) for (Order o : std::vector<Order>{{true, std::max(1, policy_set / 2), 0}, {true, std::max(1, policy_set / 4), 0}, {false, policy_set, 0}, {false, one_wave, 0}, {true, policy_set, 1}, {false, 1, 1}}) orders.push_back(o);
            }
            for (const Order& o : orders) rows.push_back({&v, o, {}, ""});
        }
        if (profile) {
            for (Row& r : rows) {
                const bool wanted = (r.v == &variants[0] && ((r.o.pairs && r.o.set == policy_set) || (!r.o.pairs && r.o.set == 1 && !r.o.diag))) || (r.v->name == "128x128 cluster" && r.o.set == 1);
                if (!wanted) continue;
                std::printf("profile: %s %s set %d diag %d\n", r.v->name.c_str(), r.o.pairs ? "pairs" : "single", r.o.set, r.o.diag);
                r.v->run(x, r.o);
                CK(cudaDeviceSynchronize());
            }
            return 0;
        }
        for (Row& r : rows) {
            CK(cudaMemset(x.o, 0xff, n * 2)); CK(cudaMemset(x.lse, 0xff, (long)s.b * s.h * s.s * 4)); CK(cudaMemset(worst, 0, 8));
            r.v->run(x, r.o);
            CK(cudaDeviceSynchronize());
            reference<<<64, 256, s.s * 4>>>(x, 37, worst);
            float w[2]; CK(cudaMemcpy(w, worst, 8, cudaMemcpyDeviceToHost));
            char t[64]; std::snprintf(t, 64, "%.1e %.1e%s", w[0], w[1], r.o.diag ? " (diag)" : w[0] > 0.02f || w[1] > 1e-3f ? " WRONG" : "");
            r.error = t;
        }
        const int repeats = s.s >= 16384 ? 3 : 12;
        for (int round = 0; round < 5; ++round)
            for (Row& r : rows) r.ms.push_back(time_ms(repeats, [&](int) { r.v->run(x, r.o); }));
        std::printf("\n%d,%d,%d,%d%s (policy: pairs, sets of %d)\n", s.b, s.h, s.s, D, s.causal ? " causal" : "", policy_set);
        for (Row& r : rows)
            std::printf("  %-22s %s set %3d diag %d  %8.4f ms (%.4f)  %6.1f TFLOP/s  %s\n", r.v->name.c_str(), r.o.pairs ? "pairs " : "single", r.o.set, r.o.diag,
                        median(r.ms), *std::min_element(r.ms.begin(), r.ms.end()), flops / median(r.ms) / 1e9, r.error.c_str());
        std::fflush(stdout);
        for (void* m : std::initializer_list<void*>{x.q, x.k, x.v, x.o, x.lse}) CK(cudaFree(m));
    }
    CK(cudaDeviceSynchronize());
}

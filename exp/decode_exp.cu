// Decode at D 128 (or HEAD_DIM): stages, splits and clusters.
#include "common.h"
#include <bit>
#include <map>
#include <gradtile/attention/cuda/decode_lanes.cuh>
#include <gradtile/attention/cuda/decode_tiles.cuh>
#include <gradtile/attention/cuda/sm90/decode_wgmma.cuh>
using namespace gradtile;
using namespace gradtile::attention;
using namespace gradtile::attention::cuda;
using namespace gradtile::attention::cuda::decoding;
constexpr int heads = 32;
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
constexpr int D = HEAD_DIM;
using bf = bfloat16;

struct Call { int texts, keys, kv, tokens, count; unsigned short *pool, *q, *k, *v, *o; int *table, *slots, *positions, *counters; float *part_o, *part_sums; long cache_elements; };
struct RawTable { const std::int32_t* entries; int slots, blocks_of_slot, blocks, log2_rows; };
static_assert(sizeof(RawTable) == sizeof(BlockTable));

template <class Thread>
bool run(const Call& c, int i, int splits, int cluster, int* info) {
    using Block = typename Thread::Block;
    const int group = heads / c.kv, queries = c.tokens * group, sets = (queries + Block::queries - 1) / Block::queries;
    const auto at = [&](int half) { return reinterpret_cast<bf*>(c.pool + (2l * (i % c.count) + half) * c.cache_elements); };
    const long block_stride = 64l * c.kv * D, key_stride = (long)c.kv * D;
    const int blocks_of_text = (c.keys + 63) / 64;
    DecodeParameters<bf> p{
        .q = {(const bf*)c.q, (long)c.tokens * heads * D, (long)heads * D, D},
        .k = {(const bf*)c.k, (long)c.tokens * c.kv * D, (long)c.kv * D, D},
        .v = {(const bf*)c.v, (long)c.tokens * c.kv * D, (long)c.kv * D, D},
        .o = {(bf*)c.o, (long)c.tokens * heads * D, (long)heads * D, D},
        .lse = nullptr,
        .cached_k = {at(0), block_stride, key_stride, D},
        .cached_v = {at(1), block_stride, key_stride, D},
        .slots = c.slots, .positions = c.positions, .heads = heads, .kv_heads = c.kv, .group = group, .head_dim = D, .tokens = c.tokens, .query_sets = sets,
        .blocks = std::bit_cast<BlockTable>(RawTable{c.table, c.texts, blocks_of_text, c.texts * blocks_of_text, 6}),
        .context = blocks_of_text * 64, .mask = {}, .scores = {}, .scale = 1 / std::sqrt(float(D)), .cluster_log2 = std::countr_zero((unsigned)cluster),
        .counters = c.counters, .part_o = c.part_o, .part_sums = c.part_sums};
    p.mask.queries = c.tokens; p.mask.keys = p.context; p.mask.offset = p.context - c.tokens; p.mask.left = 1 << 24; p.mask.right = 0;
    const auto kernel = decode_kernel<Thread>;
    constexpr int shared = sizeof(typename Thread::Shared);
    static bool once = [&] { CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared)); CK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)); return true; }();
    (void)once;
    cudaLaunchAttribute a[2]{};
    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; a[0].val.programmaticStreamSerializationAllowed = 1;
    a[1].id = cudaLaunchAttributeClusterDimension; a[1].val.clusterDim = {(unsigned)cluster, 1, 1};
    cudaLaunchConfig_t l{};
    l.gridDim = dim3(splits, c.kv * sets, c.texts); l.blockDim = dim3(Block::threads); l.dynamicSmemBytes = shared; l.attrs = a; l.numAttrs = cluster > 1 ? 2 : 1;
    extern cudaStream_t stream; l.stream = stream;
    if (info) {
        info[0] = shared; info[1] = 0; info[2] = 0;
        cudaFuncAttributes f; CK(cudaFuncGetAttributes(&f, kernel)); info[3] = f.numRegs;
        CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&info[1], kernel, Block::threads, shared));
        cudaLaunchConfig_t o = l; o.attrs = a + 1; o.numAttrs = 1;
        CK(cudaOccupancyMaxActiveClusters(&info[2], kernel, &o));
        return true;
    }
    CK(cudaLaunchKernelEx(&l, kernel, p));
    return true;
}
cudaStream_t stream;

struct Variant { std::string name; int queries; bool lanes; bool (*run)(const Call&, int, int, int, int*); };
const std::vector<Variant> variants = {
#define T_(rows, stages) {"tiles " #rows " stages " #stages, 16 * rows, false, run<TilesThread<bf, TilesBlock<bf, D, rows, stages>>>}
#define L_(q, threads, unroll, per) {"lanes q" #q " t" #threads " u" #unroll " sm" #per, q, true, run<LanesThread<bf, LanesBlock<bf, D / 8, 1, q, false, threads, unroll, per>>>}
#define W_(rows, stages, warps) {"tiles " #rows " stages " #stages " w" #warps, 16 * rows, false, run<TilesThread<bf, TilesBlock<bf, D, rows, stages, warps>>>}
#define G_(wgs, stages) {"wgmma " #wgs " stages " #stages, 64 * wgs, false, run<WarpgroupsThread<bf, WarpgroupsBlock<bf, D, wgs, stages>>>}
#if HEAD_DIM == 64
    T_(1, 4), T_(1, 6), T_(2, 4), T_(2, 6), T_(4, 4), T_(4, 6), W_(4, 8, 8), G_(1, 4), G_(1, 8), G_(2, 4), G_(2, 8), L_(1, 256, 4, 1), L_(1, 256, 4, 2), L_(1, 256, 8, 1), L_(1, 128, 8, 3),
#else
    T_(1, 2), T_(1, 3), T_(1, 4), T_(1, 6), T_(2, 2), T_(2, 3), T_(2, 4), T_(2, 6), W_(2, 3, 8), W_(2, 4, 8), T_(4, 3), T_(4, 5), W_(4, 5, 8),
    G_(1, 2), G_(1, 3), G_(1, 5), G_(2, 3), G_(2, 4),
    L_(1, 256, 4, 1), L_(1, 256, 4, 2), L_(1, 256, 8, 1), L_(1, 128, 4, 4), L_(1, 128, 8, 3), L_(1, 512, 4, 1),
#endif
};

float graph_us(int count, const std::function<void(int)>& f) {
    cudaGraph_t g; cudaGraphExec_t e;
    CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) f(i);
    CK(cudaStreamEndCapture(stream, &g)); CK(cudaGraphInstantiate(&e, g, 0));
    cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
    CK(cudaGraphLaunch(e, stream));
    std::vector<float> t;
    for (int r = 0; r < 5; ++r) {
        CK(cudaEventRecord(a, stream)); CK(cudaGraphLaunch(e, stream)); CK(cudaEventRecord(b, stream)); CK(cudaEventSynchronize(b));
        float ms; CK(cudaEventElapsedTime(&ms, a, b)); t.push_back(ms * 1000 / count);
    }
    CK(cudaGraphExecDestroy(e)); CK(cudaGraphDestroy(g)); CK(cudaEventDestroy(a)); CK(cudaEventDestroy(b));
    return median(t);
}
template <class X> X* device_copy(const std::vector<X>& v) { X* p; CK(cudaMalloc(&p, v.size() * sizeof(X) + 16)); CK(cudaMemcpy(p, v.data(), v.size() * sizeof(X), cudaMemcpyHostToDevice)); return p; }

int main() {
    CK(cudaStreamCreate(&stream));
    const long pool_elements = 768l << 19;  // 768 MiB
    unsigned short* pool = random_bf16(pool_elements, 1);
    // A large copy's rate.
    unsigned short* big; CK(cudaMalloc(&big, 2l << 30));
    const double big_us = graph_us(2, [&](int) { CK(cudaMemcpyAsync(big, big + (1l << 29), 1l << 30, cudaMemcpyDeviceToDevice, stream)); });
    const double rate = 2.0 * (1l << 30) / big_us;  // bytes per us
    std::printf("a copy of 1 GiB: %.0f GB/s read and written\n", rate / 1000);
    CK(cudaFree(big));
    std::map<std::string, bool> described;
    for (int mib : {256, 16, 1})
        for (int kv : {32, 8, 4})
            for (int tokens : {1, 4, 16}) {
                const long keys = std::max<long>(tokens, ((long)mib << 20) / (4l * kv * D));
                Call c{}; c.keys = (int)std::min(8192l, keys); c.texts = (int)std::max(1l, keys / c.keys); c.kv = kv; c.tokens = tokens; c.pool = pool;
                const double bytes = 4.0 * c.texts * c.keys * kv * D;
                const int bt = (c.keys + 63) / 64;
                c.cache_elements = (long)c.texts * bt * 64 * kv * D;
                c.count = (int)std::min<long>(std::max<long>(2, (mib == 1 ? 100e6 : 200e6) / bytes), pool_elements / (2 * c.cache_elements));
                c.q = random_bf16((long)c.texts * tokens * heads * D, 2); c.k = random_bf16((long)c.texts * tokens * kv * D, 3); c.v = random_bf16((long)c.texts * tokens * kv * D, 4);
                const long n = (long)c.texts * tokens * heads * D;
                CK(cudaMalloc(&c.o, n * 2));
                std::vector<int> table, slots, positions(c.texts, c.keys - tokens);
                for (int t = 0; t < c.texts; ++t) { slots.push_back(t); for (int b = 0; b < bt; ++b) table.push_back(b * c.texts + t); }
                c.table = device_copy(table); c.slots = device_copy(slots); c.positions = device_copy(positions);
                CK(cudaMalloc(&c.counters, 4l * c.texts * kv * 64)); CK(cudaMemset(c.counters, 0, 4l * c.texts * kv * 64));
                CK(cudaMalloc(&c.part_o, 4l * n * 64)); CK(cudaMalloc(&c.part_sums, 8l * c.texts * tokens * heads * 64));
                const int queries = tokens * heads / kv;
                int wanted = queries <= 16 ? 16 : 32;
                const bool lanes = tokens == 1 && queries <= 2;
                const double copy_us = graph_us(c.count, [&](int i) {
                    CK(cudaMemcpyAsync(pool + 2l * (i % c.count) * c.cache_elements, pool + (2l * (i % c.count) + 1) * c.cache_elements, (long)(bytes / 2), cudaMemcpyDeviceToDevice, stream)); });
                std::printf("\n%d MiB, %d K/V heads, D %d, %d tokens: %d texts x %d keys; a copy takes %.1f us; 90%% of a large copy %.1f us\n", mib, kv, D, tokens, c.texts, c.keys, copy_us, bytes / rate / 0.9);
                std::vector<unsigned short> first, now(n);
                for (const Variant& v : variants) {
                    if (v.lanes != lanes || (!lanes && v.queries != wanted && !(v.queries == 64 && (queries >= 64 || v.name[0] == 'w')) && !(v.queries == 128 && queries >= 128)) || (lanes && v.queries < queries)) continue;
                    const int base = c.texts * kv * ((queries + v.queries - 1) / v.queries);
                    if (!described[v.name]) {
                        described[v.name] = true;
                        std::printf("  [%s:", v.name.c_str());
                        for (int cl : {1, 2, 4, 8}) { int info[4]; v.run(c, 0, 8, cl, info); if (cl == 1) std::printf(" %d bytes, %d registers, %d a multiprocessor; clusters at once", info[0], info[3], info[1]); std::printf(" %d of %d%s", info[2], cl, cl < 8 ? "," : "]\n"); }
                    }
                    std::printf("  %-26s", v.name.c_str());
                    for (int splits : {1, 2, 4, 8, 16, 32})
                        for (int cl : {1, 2, 4, 8}) {
                            if (cl > splits || (long)base * splits > 600 || ((long)base * splits < 64 && splits < 8) || splits * 64 > std::max(512, c.keys)) continue;
                            if (splits / cl > 8) continue;
                            CK(cudaMemsetAsync(c.o, 0xff, n * 2, stream));
                            v.run(c, 0, splits, cl, nullptr);
                            CK(cudaStreamSynchronize(stream));
                            CK(cudaMemcpy(now.data(), c.o, n * 2, cudaMemcpyDeviceToHost));
                            const char* wrong = "";
                            if (first.empty()) first = now;
                            const auto f = [](unsigned short u) { return std::bit_cast<float>((unsigned)u << 16); };
                            for (long i = 0; i < n; ++i) if (!(std::abs(f(now[i]) - f(first[i])) <= 0.004f + 0.02f * std::abs(f(first[i])))) { wrong = " WRONG"; break; }
                            const float us = graph_us(c.count, [&](int i) { v.run(c, i, splits, cl, nullptr); });
                            std::printf(" %dx%d/%d:%.1f(%.0f%%)%s", base, splits, cl, us, 100 * bytes / us / rate, wrong);
                        }
                    std::printf("\n"); std::fflush(stdout);
                }
                for (void* m : std::initializer_list<void*>{c.q, c.k, c.v, c.o, c.table, c.slots, c.positions, c.counters, c.part_o, c.part_sums}) CK(cudaFree(m));
            }
}

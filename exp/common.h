#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include <cuda.h>
#include <cuda_runtime.h>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { std::printf("CUDA error %s at %s:%d\n", cudaGetErrorString(e_), __FILE__, __LINE__); std::fflush(stdout); std::exit(1); } } while (0)

inline CUtensorMap make_map(void* base, long b, long s, long h, long d, int rows, bool narrow) {
    static auto encode = [] {
        void* f = nullptr; cudaDriverEntryPointQueryResult r{};
        CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &r));
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
    }();
    cuuint64_t sizes[] = {(cuuint64_t)d, (cuuint64_t)s, (cuuint64_t)h, (cuuint64_t)b};
    cuuint64_t strides[] = {(cuuint64_t)(h * d * 2), (cuuint64_t)(d * 2), (cuuint64_t)(s * h * d * 2)};
    cuuint32_t box[] = {narrow ? 32u : 64u, (cuuint32_t)rows, 1, 1}, steps[] = {1, 1, 1, 1};
    CUtensorMap m;
    CUresult r = encode(&m, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) { std::printf("map error %d\n", (int)r); std::exit(1); }
    return m;
}
__global__ void fill_random(unsigned short* x, long n, unsigned seed) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        unsigned long z = (i + 1) * 0x9E3779B97F4A7C15ul + seed * 0xD1342543DE82EF95ul;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ul; z = (z ^ (z >> 27)) * 0x94D049BB133111EBul; z ^= z >> 31;
        float u1 = ((z & 0xffffff) + 1) * (1.0f / 16777217), u2 = ((z >> 24) & 0xffffff) * (1.0f / 16777216);
        float g = sqrtf(-2 * logf(u1)) * cospif(2 * u2);
        x[i] = (unsigned short)((__float_as_uint(g) + 0x8000) >> 16);
    }
}
inline unsigned short* random_bf16(long n, unsigned seed) {
    unsigned short* p; CK(cudaMalloc(&p, n * 2)); fill_random<<<1024, 256>>>(p, n, seed); CK(cudaGetLastError()); return p;
}
/// Milliseconds of one call of f, from `repeats` calls between two events.
inline float time_ms(int repeats, const std::function<void(int)>& f) {
    static cudaEvent_t a = nullptr, b = nullptr;
    if (!a) { CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b)); }
    CK(cudaEventRecord(a, 0));
    for (int i = 0; i < repeats; ++i) f(i);
    CK(cudaEventRecord(b, 0)); CK(cudaEventSynchronize(b));
    float ms; CK(cudaEventElapsedTime(&ms, a, b)); return ms / repeats;
}
inline float median(std::vector<float> v) { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }

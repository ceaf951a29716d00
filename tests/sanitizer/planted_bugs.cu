// A program with one defect of each kind that compute-sanitizer detects. sanitize_cuda.sh runs it before the
// tests, to prove that each tool reports such a defect. Built only with -DGRADTILE_COMPUTE_SANITIZER=ON or
// racecheck.
#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

namespace {

constexpr int threads = 64;

/// For memcheck: the last thread writes beyond the array's end.
__global__ void out_of_bounds(int* x, int elements) {
    const int i = static_cast<int>(threadIdx.x) + 1;
    if (i <= elements) x[i] = i;
}

/// For racecheck: no barrier between writing and reading a neighbour's element.
__global__ void race(int* x) {
    __shared__ int shared[threads];
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    x[threadIdx.x] = shared[threads - 1 - threadIdx.x];
}

/// For initcheck: adds to memory that was never written.
__global__ void uninitialised(int* x) {
    x[threadIdx.x] += 1;
}

/// For synccheck: only half the warp reaches the barrier.
__global__ void divergent_barrier(int* x) {
    if (threadIdx.x % 2 == 0) __syncthreads();
    x[threadIdx.x] = static_cast<int>(threadIdx.x);
}

}  // namespace

int main(int argc, char** argv) {
    const char* const bug = argc == 2 ? argv[1] : "";
    int* x = nullptr;
    if (cudaMalloc(&x, threads * sizeof(int)) != cudaSuccess) return 2;
    if (std::strcmp(bug, "memcheck") == 0) {
        out_of_bounds<<<1, threads>>>(x, threads);
    } else if (std::strcmp(bug, "racecheck") == 0) {
        race<<<1, threads>>>(x);
    } else if (std::strcmp(bug, "initcheck") == 0) {
        uninitialised<<<1, threads>>>(x);
    } else if (std::strcmp(bug, "synccheck") == 0) {
        divergent_barrier<<<1, threads>>>(x);
    } else {
        std::fprintf(stderr, "usage: planted_bugs memcheck|racecheck|initcheck|synccheck\n");
        return 2;
    }
    (void)cudaDeviceSynchronize();
    (void)cudaFree(x);
    return 0;
}

#pragma once
/// INTERNAL. Which instantiation of a kernel serves a call: by head dim, and by the shared memory that a
/// block may have. Plain C++: tests ask for every GPU's choice without a GPU.
namespace gradtile::attention::cuda {

template <int dim>
struct HeadDim {};
/// Head dims with kernels of their own, in rising order. Others run in the next larger one, padded with zeros
/// on chip.
template <int... dims>
struct HeadDims {};

/// Calls f(HeadDim<n>{}) for the smallest n of the list that holds d, or its largest.
template <int first, int... rest, class F>
void visit_head_dim(HeadDims<first, rest...>, int d, F&& f) {
    if constexpr (sizeof...(rest) > 0) {
        if (d > first) return visit_head_dim(HeadDims<rest...>{}, d, f);
    }
    f(HeadDim<first>{});
}
template <class Dims>
int padded_head_dim(Dims dims, int d) {
    int padded = 0;
    visit_head_dim(dims, d, [&]<int dim>(HeadDim<dim>) { padded = dim; });
    return padded;
}

// GPUs differ in the shared memory that a block may have, so kernels with large tiles exist in up to three
// sizes.

/// Bytes a block may have on compute capability 9.0 and 10.x; on 8.0 and 8.7; on 8.6, 8.9 and 12.x.
inline constexpr int shared_memory_limits[] = {227 * 1024, 163 * 1024, 99 * 1024};
inline constexpr int shared_memory_classes = 3;

/// The least that a GPU of this build's architectures has; CMake sets it.
#ifdef GRADTILE_LEAST_SHARED_MEMORY
inline constexpr int least_shared_memory = GRADTILE_LEAST_SHARED_MEMORY;
#else
inline constexpr int least_shared_memory = shared_memory_limits[shared_memory_classes - 1];
#endif

template <int bytes>
struct SharedMemory {};

/// Calls f(SharedMemory<limit>{}) with the largest limit that `available` bytes hold. Choice::tiles(limit) is
/// what f compiles a kernel for: limits with the same tiles share one, and those that no GPU of this build
/// has get none.
template <class Choice, int index = 0, class F>
void visit_shared_memory(int available, F&& f) {
    constexpr int limit = shared_memory_limits[index];
    if constexpr (limit > least_shared_memory) {
        if (available < limit) return visit_shared_memory<Choice, index + 1>(available, f);
    }
    constexpr int first_alike = [] {
        int i = 0;
        while (Choice::tiles(shared_memory_limits[i]) != Choice::tiles(limit)) ++i;
        return shared_memory_limits[i];
    }();
    f(SharedMemory<first_alike>{});
}

}  // namespace gradtile::attention::cuda

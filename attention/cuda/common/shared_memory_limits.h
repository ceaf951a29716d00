#pragma once
/// INTERNAL. Selects a kernel instantiation by head dim, and by the shared memory that a thread block may
/// use. This header is plain C++, so that tests can check the choices for every GPU without a GPU.
namespace gradtile::attention::cuda {

template <int dim>
struct HeadDim {};
/// Head dims that have their own kernels, in increasing order. Other head dims use the kernel for the next
/// larger one, which fills the missing columns with zeros in shared memory.
template <int... dims>
struct HeadDims {};

/// Calls f(HeadDim<n>{}) for the smallest n in the list with n >= d, or for the largest n if there is none.
template <int first, int... rest, class F>
void visit_head_dim(HeadDims<first, rest...>, int d, F&& f) {
    if constexpr (sizeof...(rest) > 0) {
        if (d > first) return visit_head_dim(HeadDims<rest...>{}, d, f);
    }
    f(HeadDim<first>{});
}
/// Head dims of the 16-bit kernels.
using Bits16HeadDims = HeadDims<32, 64, 96, 128, 192, 256>;
template <class Dims>
int padded_head_dim(Dims dims, int d) {
    int padded = 0;
    visit_head_dim(dims, d, [&]<int dim>(HeadDim<dim>) { padded = dim; });
    return padded;
}

// GPUs differ in the shared memory that a thread block may use, so kernels with large tiles are compiled with
// up to three tile sizes.

/// Shared memory limits per thread block, in bytes: on compute capability 9.0 and 10.x; on 8.0 and 8.7; on
/// 8.6, 8.9 and 12.x.
inline constexpr int shared_memory_limits[] = {227 * 1024, 163 * 1024, 99 * 1024};
inline constexpr int shared_memory_classes = 3;

/// The smallest limit among the GPUs that this build supports; CMake sets it.
#ifdef GRADTILE_MIN_SHARED_MEMORY
inline constexpr int min_shared_memory = GRADTILE_MIN_SHARED_MEMORY;
#else
inline constexpr int min_shared_memory = shared_memory_limits[shared_memory_classes - 1];
#endif

template <int bytes>
struct SharedMemory {};

/// Calls f(SharedMemory<limit>{}) with the largest limit that is at most `available` bytes. f compiles one
/// kernel per limit, with the tiles Choice::tiles(limit). Limits with the same tiles share one kernel: f is
/// then called with the largest such limit. f is not instantiated for limits that no GPU in this build has.
template <class Choice, int index = 0, class F>
void visit_shared_memory(int available, F&& f) {
    constexpr int limit = shared_memory_limits[index];
    if constexpr (limit > min_shared_memory) {
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

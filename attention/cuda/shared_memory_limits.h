#pragma once
/// INTERNAL. GPUs differ in the shared memory that a block may have, so kernels with large tiles exist in up
/// to three sizes. Plain C++: tests ask for every GPU's choice without having it.
namespace gradtile::attention::cuda {

/// Bytes a block may have on compute capability 9.0 and 10.x; on 8.0 and 8.7; on 8.6, 8.9 and 12.x.
inline constexpr int shared_memory_limits[] = {227 * 1024, 163 * 1024, 99 * 1024};
inline constexpr int shared_memory_classes = 3;

/// The least of the GPUs that this build holds code for; CMake knows the architectures.
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

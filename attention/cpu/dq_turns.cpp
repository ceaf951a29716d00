// The order of additions to dQ, kept by counters. The compilers' built-in atomics replace std::atomic_ref,
// which libc++ has since its version 19.
#include <thread>

#include <gradtile/attention/cpu/kernels.h>
#include <gradtile/core/internal/pause.h>

namespace gradtile::attention::cpu {

void wait_for_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block,
                      std::int64_t key_block) {
    const std::int32_t& counter = turns.counters[head * turns.blocks_per_head + row_block];
    // The task of the K/V block whose turn it is started before this task, so the wait takes at most as long
    // as one block. The thread yields early, because there may be more threads than cores.
    constexpr int spins = 2000;
    for (int i = 0; __atomic_load_n(&counter, __ATOMIC_ACQUIRE) != key_block; ++i) {
        if (i >= spins) std::this_thread::yield();
        pause_briefly();
    }
}

void pass_dq_turn(const DqTurns& turns, std::int64_t head, std::int64_t row_block, std::int64_t key_block) {
    std::int32_t& counter = turns.counters[head * turns.blocks_per_head + row_block];
    __atomic_store_n(&counter, static_cast<std::int32_t>(key_block + 1), __ATOMIC_RELEASE);
}

}  // namespace gradtile::attention::cpu

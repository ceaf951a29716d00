#pragma once
/// INTERNAL. A short pause in a loop that waits for another thread.
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <thread>
#endif

namespace gradtile {

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // `yield` does nothing on most processors; isb waits for the pipeline
#else
    std::this_thread::yield();
#endif
}

}  // namespace gradtile

// Preloaded into the program: replaces operator new, which then fails as the environment asks for:
//   GRADTILE_FAILING_NEW=once:7   the 7th call after main() has begun throws std::bad_alloc
//   GRADTILE_FAILING_NEW=from:7   so do all later calls
//   GRADTILE_NEW_CALLS=FILE       the number of calls after main() has begun is written to FILE
// Calls before main() never fail, because nothing could handle the exceptions of libraries that are being
// loaded.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace {

constexpr long never = std::numeric_limits<long>::max();
std::atomic<long> calls{0};
std::atomic<bool> has_begun{false};
long first_failing = never, last_failing = never;

void* allocate(std::size_t bytes) {
    if (has_begun) {
        const long call = ++calls;
        if (call >= first_failing && call <= last_failing) return nullptr;
    }
    return std::malloc(bytes > 0 ? bytes : 1);
}

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

int counted_main(int argc, char** argv, char** environment) {
    if (const char* const wanted = std::getenv("GRADTILE_FAILING_NEW")) {
        first_failing = std::strtol(wanted + std::strlen("once:"), nullptr, 10);
        if (wanted[0] == 'o') last_failing = first_failing;
    }
    has_begun = true;
    const int status = program_main(argc, argv, environment);
    has_begun = false;
    if (const char* const path = std::getenv("GRADTILE_NEW_CALLS"))
        if (std::FILE* const file = std::fopen(path, "w")) {
            std::fprintf(file, "%ld", calls.load());
            std::fclose(file);
        }
    return status;
}

}  // namespace

extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*rtld_fini)(), void* stack_end) {
    program_main = main;
    using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
    const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
    return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

void* operator new(std::size_t bytes) {
    void* const block = allocate(bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
void* operator new[](std::size_t bytes) {
    return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes);
}
void operator delete(void* block) noexcept {
    std::free(block);
}
void operator delete[](void* block) noexcept {
    std::free(block);
}
void operator delete(void* block, std::size_t) noexcept {
    std::free(block);
}
void operator delete[](void* block, std::size_t) noexcept {
    std::free(block);
}

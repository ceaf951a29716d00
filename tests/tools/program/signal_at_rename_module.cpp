// Preloaded into the program: with GRADTILE_SIGNAL_AT_RENAME=15:2 the program sends itself signal 15 when it
// is about to name a file, by a rename or by a hard link, for the second time.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace {

void before_rename() {
    static int renames = 0;
    const char* const wanted = std::getenv("GRADTILE_SIGNAL_AT_RENAME");
    if (wanted == nullptr) return;
    char* end = nullptr;
    const long signal = std::strtol(wanted, &end, 10);
    if (++renames != std::strtol(end + 1, nullptr, 10)) return;
    ::kill(::getpid(), static_cast<int>(signal));
    for (;;) ::pause();  // another thread may handle the signal
}

template <class Function>
Function next_function(const char* name) {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int rename(const char* from, const char* to) noexcept {
    before_rename();
    return next_function<int (*)(const char*, const char*)>("rename")(from, to);
}

extern "C" int link(const char* from, const char* to) noexcept {
    before_rename();
    return next_function<int (*)(const char*, const char*)>("link")(from, to);
}

extern "C" int renameat2(int from_directory, const char* from, int to_directory, const char* to,
                         unsigned flags) noexcept {
    before_rename();
    return next_function<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(
        from_directory, from, to_directory, to, flags);
}

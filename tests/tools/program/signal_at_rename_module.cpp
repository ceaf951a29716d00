// Preloaded into the program: with GRADTILE_SIGNAL_AT_RENAME=15:2 the program sends itself signal 15 when it
// is about to name a file, by a rename or by a hard link, for the second time, and with 15:2:after, when it
// has done so.
#include <dlfcn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace {

/// Sends the signal where it is wanted, and gives the program a second to end, also by another thread. It may
/// also continue, because it lets signals wait.
void signal_if_wanted(std::string_view place) {
    static int renames = 0;
    const char* const wanted = std::getenv("GRADTILE_SIGNAL_AT_RENAME");
    if (wanted == nullptr) return;
    char* end = nullptr;
    const long signal = std::strtol(wanted, &end, 10), rename = std::strtol(end + 1, &end, 10);
    if (place != (*end == ':' ? end + 1 : "before")) return;
    if (++renames != rename) return;
    ::kill(::getpid(), static_cast<int>(signal));
    ::sleep(1);
}

template <class Function, class... Arguments>
int named(const char* function, Arguments... arguments) {
    signal_if_wanted("before");
    const int result = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, function))(arguments...);
    signal_if_wanted("after");
    return result;
}

}  // namespace

extern "C" int rename(const char* from, const char* to) noexcept {
    return named<int (*)(const char*, const char*)>("rename", from, to);
}

extern "C" int link(const char* from, const char* to) noexcept {
    return named<int (*)(const char*, const char*)>("link", from, to);
}

extern "C" int renameat2(int from_directory, const char* from, int to_directory, const char* to,
                         unsigned flags) noexcept {
    return named<int (*)(int, const char*, int, const char*, unsigned)>("renameat2", from_directory, from,
                                                                        to_directory, to, flags);
}

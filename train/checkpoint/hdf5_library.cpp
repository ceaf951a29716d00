#include <gradtile/train/checkpoint/internal/hdf5_library.h>

namespace gradtile {

namespace {
std::mutex library_mutex;
}

Hdf5Lock::Hdf5Lock() : lock_(library_mutex) {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
}

void throw_hdf5_error(const std::string& what) {
    // H5E_WALK_UPWARD begins at the function that found the error.
    const auto first = [](unsigned, const H5E_error2_t* error, void* reason) -> herr_t {
        *static_cast<std::string*>(reason) = error->desc != nullptr ? error->desc : "";
        return 1;
    };
    std::string reason;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &reason);
    H5Eclear2(H5E_DEFAULT);
    throw Error("cannot " + what + (reason.empty() ? "" : " (libhdf5: " + reason + ")"));
}

}  // namespace gradtile

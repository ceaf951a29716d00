#include <gradtile/core/version.h>

namespace gradtile {

const char* version() {
    return GRADTILE_VERSION;
}

}  // namespace gradtile

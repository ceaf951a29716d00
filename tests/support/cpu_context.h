#pragma once
/// A shared context for CPU tests, with several threads.
#include <gradtile/core/context.h>

namespace gradtile::test {

inline const Context ctx(Device::cpu(), 3);

}  // namespace gradtile::test

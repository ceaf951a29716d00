#pragma once
/// For tests that run where the operators run everywhere: on the CPU, with more threads than one.
#include <gradtile/core/context.h>

namespace gradtile::test {

inline const Context ctx(Device::cpu(), 3);

}  // namespace gradtile::test

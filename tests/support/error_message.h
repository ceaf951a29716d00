#pragma once
/// The Error message that an action throws.
#include <string>

#include <gradtile/core/check.h>

namespace gradtile::test {

template <class Action>
std::string message_of(Action&& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

}  // namespace gradtile::test

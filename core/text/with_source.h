#pragma once
/// Adds the name of a file or another source to errors.
#include <string_view>

#include <gradtile/core/check.h>

namespace gradtile {

/// Returns work()'s result. If work() throws Error, the message begins with "SOURCE: ".
template <class Work>
auto with_source(std::string_view source, Work&& work) {
    try {
        return work();
    } catch (const Error& error) {
        throw Error(concat(source, ": ", error.what()), error.where());
    }
}

}  // namespace gradtile

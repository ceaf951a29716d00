#pragma once
/// Starts a thread, with an error that says what the thread is for.
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <gradtile/core/check.h>

namespace gradtile {

/// Returns a running thread. Throws Error "threads: the system gives none for PURPOSE: ..." when a user,
/// container or memory limit is reached; std::thread's own error says nothing but the system's reason.
template <class Body>
std::thread start_thread(std::string_view purpose, Body&& body) {
    try {
        return std::thread(std::forward<Body>(body));
    } catch (const std::system_error& error) {
        throw Error(concat("threads: the system gives none for ", purpose, ": ", error.what()));
    }
}

}  // namespace gradtile

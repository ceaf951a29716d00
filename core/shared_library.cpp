#include <gradtile/core/shared_library.h>

#include <dlfcn.h>

namespace gradtile {
namespace {

/// Where to look for a library.
std::vector<std::string> places_of(const std::string& name) {
#if defined(__APPLE__)
    if (const std::string here = macos_name(name); here != name) return {here, "/opt/homebrew/lib/" + here};
#endif
    return {name};
}

}  // namespace

std::string macos_name(const std::string& name) {
    const std::size_t extension = name.find(".so");
    const bool is_searched = name.find('/') == std::string::npos && extension != std::string::npos;
    return is_searched ? name.substr(0, extension) + name.substr(extension + 3) + ".dylib" : name;
}

SharedLibrary::SharedLibrary(std::string who, const std::vector<std::string>& names,
                             const std::string& remedy)
    : who_(std::move(who)), name_(names.front()) {
    std::string why;
    for (const std::string& name : names) {
        for (const std::string& place : places_of(name)) {
            handle_ = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (handle_ != nullptr) {
                name_ = place;
                return;
            }
            if (why.empty()) why = dlerror();
        }
    }
    throw Error(concat(who_, ": ", name_, " cannot be loaded: ", why, remedy.empty() ? "" : "; ", remedy));
}

void* SharedLibrary::address_of(const char* symbol) const {
    void* const address = dlsym(handle_, symbol);
    check(address != nullptr, who_, ": the installed ", name_, " has no ", symbol);
    return address;
}

}  // namespace gradtile

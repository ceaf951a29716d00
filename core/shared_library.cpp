#include <gradtile/core/shared_library.h>

#include <dlfcn.h>

namespace gradtile {

SharedLibrary::SharedLibrary(std::string who, const std::vector<std::string>& names,
                             const std::string& remedy)
    : who_(std::move(who)), name_(names.front()) {
    std::string why;
    for (const std::string& name : names) {
        handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle_ != nullptr) {
            name_ = name;
            return;
        }
        if (why.empty()) why = dlerror();
    }
    throw Error(concat(who_, ": ", name_, " cannot be loaded: ", why, remedy.empty() ? "" : "; ", remedy));
}

void* SharedLibrary::address_of(const char* symbol) const {
    void* const address = dlsym(handle_, symbol);
    check(address != nullptr, who_, ": the installed ", name_, " has no ", symbol);
    return address;
}

}  // namespace gradtile

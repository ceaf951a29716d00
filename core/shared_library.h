#pragma once
/// Libraries that are loaded when their first function is needed, so that the program starts on machines
/// without them.
#include <string>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {

/// The name on macOS of a library that Linux calls "libNAME.so.VERSION": "libNAME.VERSION.dylib".
std::string macos_name(const std::string& name);

/// A loaded library. It is never unloaded, because objects that the library created may outlive this handle.
class SharedLibrary {
  public:
    /// Loads the first of `names` that can be loaded. Each is a path, or a name on Linux that the loader
    /// searches for; on macOS its name there, also in Homebrew's folder. If none can be loaded, throws Error
    /// with the loader's reason and `remedy`; the message begins with `who`.
    SharedLibrary(std::string who, const std::vector<std::string>& names, const std::string& remedy = "");

    /// Sets `function` to the address of `symbol`. Throws Error when the library has no such symbol.
    template <class Function>
    void find(const char* symbol, Function& function) const {
        function = reinterpret_cast<Function>(address_of(symbol));
    }

  private:
    void* address_of(const char* symbol) const;

    std::string who_, name_;
    void* handle_ = nullptr;
};

}  // namespace gradtile

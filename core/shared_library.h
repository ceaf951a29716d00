#pragma once
/// Libraries that are loaded when their first function is needed, so that the program starts where they are
/// missing.
#include <string>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {

/// Never unloaded: objects that the library created may outlive this handle.
class SharedLibrary {
  public:
    /// Loads the first of `names` that exists: a name on the loader's search path, or a path. `who` begins
    /// every message. Throws Error when none can be loaded, with `remedy` after the loader's reason.
    SharedLibrary(std::string who, const std::vector<std::string>& names, const std::string& remedy = "");

    /// function = symbol. Throws Error when the library has none of that name.
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

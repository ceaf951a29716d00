#pragma once
/// Libraries that are loaded when their first function is needed, so that the program starts where they are
/// missing.
#include <string>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {

/// Never unloaded: what it made may outlive this.
class SharedLibrary {
  public:
    /// The first of `names` that is there: a name for the loader's search path, or a path. `who` begins every
    /// message. Throws Error when none is there, with `remedy` behind the loader's reason.
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

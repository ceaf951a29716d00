#pragma once
#include <cstdlib>
#include <string>

namespace gradtile::test {

/// Sets an environment variable until this object is destroyed.
class EnvironmentVariable {
  public:
    EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
        setenv(name, value.c_str(), 1);
    }
    ~EnvironmentVariable() { unsetenv(name_); }
    EnvironmentVariable(const EnvironmentVariable&) = delete;
    EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

  private:
    const char* name_;
};

}  // namespace gradtile::test

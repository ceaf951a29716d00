#pragma once
/// The libraries that a run uses, for programs that report what this machine lacks.
#include <functional>
#include <string>
#include <vector>

namespace gradtile {

struct RunLibrary {
    enum class Need {
        every_run,
        some_runs,  ///< runs that use `purpose`
        gpu,
        several_gpus
    };
    std::string name;     ///< "PCRE2"
    std::string purpose;  ///< what needs the library: "BPE tokenizers"
    Need need = Need::some_runs;
    /// Loads the library with the function that a run calls. Returns its version, or an empty text if the
    /// library does not state one. Throws the Error that the run would throw, which names the missing
    /// package.
    std::function<std::string()> load;
};

/// Every library that a run loads or is linked with. Nothing is loaded before load() is called.
std::vector<RunLibrary> run_libraries();

}  // namespace gradtile

#pragma once
/// The hardware and libraries that a run can use on this machine, and those that are missing.
#include <string>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/run_libraries.h>

namespace gradtile {

struct Finding {
    enum class State {
        ok,
        missing,  ///< a library or a GPU that a run cannot use
        unused    ///< only useful with hardware that this machine does not have
    };
    std::string item;  ///< "zlib"
    State state = State::ok;
    std::string detail;            ///< one line: version and purpose, or the error with the remedy
    bool stops_every_run = false;  ///< no run with default settings can start without it
};
template <>
struct EnumNames<Finding::State> {
    static constexpr std::array names = {std::pair{Finding::State::ok, std::string_view("ok")},
                                         std::pair{Finding::State::missing, std::string_view("missing")},
                                         std::pair{Finding::State::unused, std::string_view("unused")}};
};

/// The processor with the instruction sets that gradtile's kernels use, and the memory.
std::vector<Finding> examine_machine();
/// One finding for each GPU, or one that says why a run uses none.
std::vector<Finding> examine_gpus();
/// Loads the libraries that `gpus` GPUs and the CPU use.
std::vector<Finding> examine_libraries(const std::vector<RunLibrary>& libraries, int gpus);

/// Whether no finding stops every run.
bool can_run(const std::vector<Finding>& findings);

}  // namespace gradtile

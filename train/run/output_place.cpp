#include <gradtile/train/run/output_place.h>

#include <gradtile/core/check.h>
#include <gradtile/core/io/file_system.h>

namespace gradtile {

void require_inside_run(const char* setting, const std::string& place, const std::filesystem::path& run,
                        const std::string& file) {
    check(is_inside(place, run), setting, ": '", place, "' in ", file, " is outside the run's directory ",
          run.string(), ", and holds no files of this run; name the place with --", setting, " ", place,
          ", or write nothing there with --", setting, " ''");
}

}  // namespace gradtile

#pragma once
/// The arguments that select a trained model: DIR|FILE, --device, --threads.
#include <memory>
#include <string>

#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/trainer.h>

namespace gradtile::cli {

struct ModelArgument {
    std::string path;
    DeviceChoice device = DeviceChoice::automatic;
    std::int64_t threads = 0;

    void add_to(Command& command) {
        command.add_positional("model", path, "directory of a run, or checkpoint file");
        add_device_flag(command, device);
        command.add_value("--threads", threads, "number of threads; 0: one per core");
    }
    std::unique_ptr<LanguageModel> load() const {
        check_flag("--threads", threads, threads_range);
        return load_model(path, {.device = resolve_device(device),
                                 .threads = static_cast<int>(threads),
                                 .on_message = print_message});
    }
};

}  // namespace gradtile::cli

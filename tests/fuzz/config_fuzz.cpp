// Fuzzes the config file parser: any bytes give either one Error, or settings that are unchanged after being
// written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <gradtile/core/check.h>
#include <gradtile/train/config/train_config.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace gradtile;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    TrainConfig config;
    try {
        apply_config_text(config, text, "fuzz");
    } catch (const Error&) {
        return 0;  // the config was refused
    }
    TrainConfig copy;
    apply_json(copy, to_json(config), "fuzz");  // its own output must be accepted
    if (to_json(copy) != to_json(config)) std::abort();
    try {
        validate(config);
        if (config.accumulation_steps() < 1) std::abort();
        if (!activations_are_countable(config.model, config.micro_batch_size())) std::abort();
    } catch (const Error&) {
        // a setting was out of range
    }
    return 0;
}

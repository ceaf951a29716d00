#include <gradtile/core/dropout_key.h>

#include <cmath>

namespace gradtile {

DropoutDraws dropout_draws(const char* what, double p, const DropoutKey& key, const Device& device) {
    check(p >= 0.0 && p < 1.0, what, ": dropout probability ", p, " is not in [0, 1)");
    DropoutDraws draws;
    if (!key.training) return draws;
    draws.threshold = static_cast<std::uint32_t>(std::lround(65536.0 * p));
    check(draws.threshold < 65536, what, ": dropout probability ", p, " would drop all elements");
    draws.scale = 65536.0 / (65536.0 - draws.threshold);
    draws.seed = key.seed;
    draws.first_sample = key.first_sample;
    if (key.seed_tensor.defined()) {
        check(key.seed_tensor.device() == device, what, ": seed tensor ", key.seed_tensor,
              "; expected it on ", device);
        draws.seed_words = key.seed_tensor.data<std::int32_t>();
        draws.purposes = key.purposes;
    }
    return draws;
}

}  // namespace gradtile

#pragma once
/// The random numbers of dropout, for layers and attention alike.
#include <array>

#include <gradtile/core/philox.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Purposes a seed is yet to be mixed with, in order: for a seed that only the kernel will know.
struct SeedPurposes {
    static constexpr int most = 3;  // block, place in the block, and one to spare
    std::array<std::uint64_t, most> values{};
    int count = 0;

    SeedPurposes then(std::uint64_t purpose) const {
        check(count < most, "dropout: a key is refined at most ", most, " times");
        SeedPurposes longer = *this;
        longer.values[static_cast<std::size_t>(longer.count++)] = purpose;
        return longer;
    }
    GRADTILE_HOST_DEVICE std::uint64_t mixed_with(std::uint64_t seed) const {
#ifdef __CUDA_ARCH__
#pragma unroll  // an index only known at run time would move the kernel's arguments to local memory
#endif
        for (int i = 0; i < most; ++i)
            if (i < count) seed = mix_seed(seed, values[static_cast<std::size_t>(i)]);
        return seed;
    }
};

/// Which random numbers a pass draws. A default one means evaluation: nothing is dropped. A sample's numbers
/// are its own, however the global batch is cut into micro-batches and shared out over processes.
///
/// A key of a step knows its seed. A live one reads it from device memory when the kernel runs, so that a
/// captured CUDA graph draws other numbers each time it is replayed; the numbers are the same ones.
struct DropoutKey {
    bool training = false;
    std::uint64_t seed = 0;         ///< unused in a live key
    std::int64_t first_sample = 0;  ///< this micro-batch's first sequence within the global batch
    Tensor live_seed = {};       ///< int32 [2] on the device: low and high half of mix_seed(run_seed, step)
    SeedPurposes purposes = {};  ///< what a live seed is then mixed with

    static DropoutKey of_step(std::uint64_t run_seed, std::int64_t step, std::int64_t first_sample = 0) {
        return {.training = true, .seed = step_seed(run_seed, step), .first_sample = first_sample};
    }
    /// The key of the step whose seed stands in `live_seed` when the work runs, see live_seed_of.
    static DropoutKey of_live_step(const Tensor& live_seed, std::int64_t first_sample = 0) {
        check(live_seed.dtype() == DType::i32 && live_seed.shape() == Shape{2} && live_seed.is_contiguous(),
              "dropout: a live seed in ", live_seed, "; contiguous int32 [2] expected");
        return {.training = true, .first_sample = first_sample, .live_seed = live_seed};
    }
    /// What a live seed holds during `step`.
    static std::array<std::int32_t, 2> live_seed_of(std::uint64_t run_seed, std::int64_t step) {
        const std::uint64_t seed = step_seed(run_seed, step);
        return {static_cast<std::int32_t>(static_cast<std::uint32_t>(seed)),
                static_cast<std::int32_t>(static_cast<std::uint32_t>(seed >> 32))};
    }
    /// The key of one place in the model; every place must have its own number.
    DropoutKey at(std::uint64_t site) const {
        DropoutKey key = *this;
        if (live_seed.defined()) {
            key.purposes = purposes.then(site);
        } else {
            key.seed = mix_seed(seed, site);
        }
        return key;
    }

  private:
    static std::uint64_t step_seed(std::uint64_t run_seed, std::int64_t step) {
        return mix_seed(run_seed, static_cast<std::uint64_t>(step));
    }
};

/// The numbers of one call, as kernels draw them. threshold = 0 keeps everything.
struct DropoutDraws {
    std::uint64_t seed = 0;
    const std::int32_t* live_seed = nullptr;  ///< if not null, the seed, which `purposes` are mixed into
    SeedPurposes purposes{};
    std::uint32_t threshold = 0;  ///< an element is dropped when its 16 bits are below the threshold
    double scale = 1.0;           ///< factor of the elements that are kept
    std::int64_t first_sample = 0;

    /// Call it where the numbers are drawn: on the device, when the kernel runs.
    GRADTILE_HOST_DEVICE Philox::Key key() const {
        if (live_seed == nullptr) return philox_key(seed);
        const auto low = static_cast<std::uint32_t>(live_seed[0]);
        const auto high = static_cast<std::uint32_t>(live_seed[1]);
        return philox_key(purposes.mixed_with(std::uint64_t{high} << 32 | low));
    }
};

/// The draws that drop with probability p, rounded to a multiple of 2^-16, on a device. `what` names the
/// caller in errors: Error when p is not in [0, 1) or rounds to 1, or a live seed lies on another device.
DropoutDraws dropout_draws(const char* what, double p, const DropoutKey& key, const Device& device);

}  // namespace gradtile

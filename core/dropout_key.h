#pragma once
/// Dropout's random numbers, for layers and attention.
#include <array>

#include <gradtile/core/philox.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// A list of numbers that mix_seed() mixes into a seed, one after the other. The list is needed because a
/// kernel that reads the seed from device memory must do the mixing itself.
struct SeedPurposes {
    static constexpr int max_count =
        3;  // enough for a block number, the place in the block, and one more number
    std::array<std::uint64_t, max_count> values{};
    int count = 0;

    SeedPurposes then(std::uint64_t purpose) const {
        check(count < max_count, "dropout: at() was called more than ", max_count,
              " times on a key with a seed tensor");
        SeedPurposes longer = *this;
        longer.values[static_cast<std::size_t>(longer.count++)] = purpose;
        return longer;
    }
    GRADTILE_HOST_DEVICE std::uint64_t mixed_with(std::uint64_t seed) const {
#ifdef __CUDA_ARCH__
#pragma unroll  // constant indices, because other indices would move the kernel's arguments to local memory
#endif
        for (int i = 0; i < max_count; ++i)
            if (i < count) seed = mix_seed(seed, values[static_cast<std::size_t>(i)]);
        return seed;
    }
};

/// Selects the random numbers for a pass. The default key means evaluation: nothing is dropped. A sample's
/// numbers do not depend on how the global batch is divided into micro-batches and processes.
///
/// A key has a seed, or a seed tensor. A kernel reads the seed tensor when it runs, so a captured CUDA graph
/// draws new numbers at each replay. For equal seeds, both kinds of key draw the same numbers.
struct DropoutKey {
    bool training = false;
    std::uint64_t seed = 0;         ///< unused if there is a seed tensor
    std::int64_t first_sample = 0;  ///< index of this micro-batch's first sequence in the global batch
    Tensor seed_tensor = {};  ///< int32 [2] on the device: the low and high half of mix_seed(run_seed, step)
    SeedPurposes purposes = {};  ///< mixed into the seed tensor's seed

    static DropoutKey from_step(std::uint64_t run_seed, std::int64_t step, std::int64_t first_sample = 0) {
        return {.training = true, .seed = step_seed(run_seed, step), .first_sample = first_sample};
    }
    /// The key for a step whose seed the kernel reads from `seed_tensor`; seed_words() gives its elements.
    static DropoutKey from_seed_tensor(const Tensor& seed_tensor, std::int64_t first_sample = 0) {
        check(seed_tensor.dtype() == DType::i32 && seed_tensor.shape() == Shape{2} &&
                  seed_tensor.is_contiguous(),
              "dropout: seed tensor ", seed_tensor, "; expected contiguous int32 [2]");
        return {.training = true, .first_sample = first_sample, .seed_tensor = seed_tensor};
    }
    /// The seed tensor's elements for `step`.
    static std::array<std::int32_t, 2> seed_words(std::uint64_t run_seed, std::int64_t step) {
        const std::uint64_t seed = step_seed(run_seed, step);
        return {static_cast<std::int32_t>(static_cast<std::uint32_t>(seed)),
                static_cast<std::int32_t>(static_cast<std::uint32_t>(seed >> 32))};
    }
    /// The key for one place in the model. Different places must have different numbers.
    DropoutKey at(std::uint64_t site) const {
        DropoutKey key = *this;
        if (seed_tensor.defined()) {
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

/// The numbers that one call's kernels draw. threshold = 0 keeps all elements.
struct DropoutDraws {
    std::uint64_t seed = 0;
    const std::int32_t* seed_words = nullptr;  ///< if not null, the seed is here and `purposes` are mixed in
    SeedPurposes purposes{};
    std::uint32_t threshold = 0;  ///< an element is dropped if its 16 random bits are less than this number
    double scale = 1.0;           ///< factor for the kept elements
    std::int64_t first_sample = 0;

    /// Must be called on the device while the operator runs, because seed_words is in device memory.
    GRADTILE_HOST_DEVICE Philox::Key key() const {
        if (seed_words == nullptr) return philox_key(seed);
        const auto low = static_cast<std::uint32_t>(seed_words[0]);
        const auto high = static_cast<std::uint32_t>(seed_words[1]);
        return philox_key(purposes.mixed_with(std::uint64_t{high} << 32 | low));
    }
};

/// Returns the draws that drop an element with probability p, rounded to a multiple of 2^-16. Throws an Error
/// that begins with `what` if p is not in [0, 1) or is rounded to 1, or if the seed tensor is not on the
/// device.
DropoutDraws dropout_draws(const char* what, double p, const DropoutKey& key, const Device& device);

}  // namespace gradtile

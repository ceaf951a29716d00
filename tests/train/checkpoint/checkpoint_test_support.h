#pragma once
/// Helpers for the checkpoint tests: checkpoints with values from a seed, and comparison to the bit.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

#include <support/checkpoint_in_parts.h>
#include <support/temporary_directory.h>

namespace gradtile::test {

/// Returns how many rounds a randomised test runs: GRADTILE_TEST_ROUNDS if it is set, else `small`.
inline int test_rounds(int small) {
    const char* const rounds = std::getenv("GRADTILE_TEST_ROUNDS");
    return rounds != nullptr ? std::max(1, std::atoi(rounds)) : small;
}

inline std::vector<std::byte> row_major_bytes(const Tensor& x) {
    std::vector<std::byte> bytes(x.bytes());
    copy_row_major(x, 0, x.elements(), bytes.data());
    return bytes;
}

/// A small model's weights, masters and moments at a step; every value depends on the step.
inline Checkpoint generated_checkpoint(const Context& ctx, std::int64_t step, std::int64_t width = 24) {
    Checkpoint c;
    c.step = step;
    const auto seed = static_cast<std::uint64_t>(step) * 1000;
    c.params["embedding.weight"] = randn(ctx, {65, width}, DType::bf16, Seed{seed + 1});
    c.params["blocks.0.qkv.weight"] = randn(ctx, {3 * width, width}, DType::bf16, Seed{seed + 2});
    c.params["blocks.0.norm.weight"] = randn(ctx, {width}, DType::bf16, Seed{seed + 3});
    for (const auto& [name, x] : c.params) {
        c.master[name] = randn(ctx, x.shape(), DType::f32, Seed{seed + 4});
        c.optimizer["adamw/m/" + name] = randn(ctx, x.shape(), DType::f32, Seed{seed + 5});
        c.optimizer["adamw/v/" + name] = rand(ctx, x.shape(), DType::f32, Seed{seed + 6});
    }
    c.config = JsonValue::object({{"width", width}, {"dtype", "bf16"}});
    c.data.set("position", step * 12);
    c.tokenizer = R"({"kind":"bytes"})";
    c.rng.set("seed", 18446744073709551615u);
    c.meta.set("val_loss", 1.0 / static_cast<double>(step + 1));
    return c;
}

inline void expect_same(const NamedTensors& found, const NamedTensors& meant) {
    ASSERT_EQ(found.size(), meant.size());
    for (const auto& [name, x] : meant) {
        ASSERT_TRUE(found.contains(name)) << name;
        const Tensor& y = found.at(name);
        EXPECT_EQ(y.dtype(), x.dtype()) << name;
        EXPECT_EQ(y.shape(), x.shape()) << name;
        EXPECT_TRUE(y.is_contiguous()) << name;
        EXPECT_EQ(row_major_bytes(y), row_major_bytes(x)) << name;
    }
}

/// Compares bits.
inline void expect_same(const Checkpoint& found, const Checkpoint& meant) {
    EXPECT_EQ(found.step, meant.step);
    expect_same(found.params, meant.params);
    expect_same(found.master, meant.master);
    expect_same(found.optimizer, meant.optimizer);
    EXPECT_EQ(found.config, meant.config);
    EXPECT_EQ(found.data, meant.data);
    EXPECT_EQ(found.tokenizer, meant.tokenizer);
    EXPECT_EQ(found.rng, meant.rng);
    EXPECT_EQ(found.meta, meant.meta);
}

inline std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
    const std::string text = contents_of(path);
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Returns the Error message that `work` throws; fails the test if it throws none.
template <class Work>
std::string error_of(Work&& work) {
    try {
        work();
    } catch (const Error& error) {
        return error.what();
    }
    ADD_FAILURE() << "no Error was thrown";
    return {};
}

}  // namespace gradtile::test

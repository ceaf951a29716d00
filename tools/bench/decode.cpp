// gradtile bench decode: times attention in a generation step on a GPU, and beside it a copy within the GPU's
// memory that reads and writes together as many bytes as the step reads from K and V. Every call reads
// another cache, so that none is in the L2 cache.
#include <algorithm>

#include <gradtile/attention/decode.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/tools/command_line/devices.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile::cli {
namespace {

struct Flags {
    std::vector<std::int64_t> mib{1, 16, 256, 4096}, kv_heads{32, 8, 4}, head_dims{64, 128}, tokens{1, 4, 16};
    std::int64_t heads = 32, texts = 0, keys = 8192, window = 0, block_tokens = 64;
    TrainDType dtype = TrainDType::bf16;
    bool json = false;
};

struct DecodeShape {
    std::int64_t texts, keys;  ///< keys: of a text, with the new ones
    std::int64_t kv_heads, head_dim, tokens;
};

/// Whole blocks of keys, so that a text of the default list has at most Flags::keys of them.
DecodeShape shape_of_size(const Flags& flags, std::int64_t mib, DecodeShape shape) {
    const std::int64_t key_bytes = 2 * static_cast<std::int64_t>(size_of(storage_dtype(flags.dtype))) *
                                   shape.kv_heads * shape.head_dim,
                       keys = std::max<std::int64_t>(shape.tokens, (mib << 20) / key_bytes);
    shape.keys = std::min(flags.keys, keys);
    shape.texts = std::max<std::int64_t>(1, keys / shape.keys);
    return shape;
}

/// Caches of one shape, as many as are larger than the L2 cache together.
class Caches {
  public:
    Caches(const Context& ctx, const Flags& flags, const DecodeShape& shape)
        : bytes_(
              2.0 * static_cast<double>(size_of(storage_dtype(flags.dtype))) *
              static_cast<double>(shape.texts * seen_keys(flags, shape) * shape.kv_heads * shape.head_dim)),
          count(std::max<std::int64_t>(2, static_cast<std::int64_t>(400e6 / bytes_))) {
        const std::int64_t rows = flags.block_tokens > 0 ? flags.block_tokens : shape.keys,
                           blocks_of_text = ceil_div(shape.keys, rows), blocks = shape.texts * blocks_of_text;
        const RandomNumbers numbers(ctx);
        const Shape all{count, blocks, rows, shape.kv_heads, shape.head_dim};
        k_ = numbers(ctx, all, storage_dtype(flags.dtype));
        v_ = numbers(ctx, all, storage_dtype(flags.dtype));
        if (flags.block_tokens == 0) return;
        // As after texts have grown in turn: no neighbouring blocks belong to the same text.
        std::vector<std::int32_t> table;
        for (std::int64_t text = 0; text < shape.texts; ++text)
            for (std::int64_t block = 0; block < blocks_of_text; ++block)
                table.push_back(static_cast<std::int32_t>(block * shape.texts + text));
        table_ = from_host(ctx, table, {shape.texts, blocks_of_text});
    }
    attention::DecodeCache cache(std::int64_t i) const { return {k_.select(0, i), v_.select(0, i), table_}; }
    /// The bytes of K and V that the step's tokens see.
    double bytes() const { return bytes_; }
    /// Copies half as many bytes as the step reads, which is as many read and written together.
    void copy(const Context& ctx, std::int64_t i) const {
        cuda::copy_bytes(v_.select(0, i).raw_data(), k_.select(0, i).raw_data(),
                         static_cast<std::size_t>(bytes_ / 2), ctx.device(), ctx.stream());
    }

  private:
    static std::int64_t seen_keys(const Flags& flags, const DecodeShape& shape) {
        return flags.window > 0 ? std::min(shape.keys, flags.window + shape.tokens - 1) : shape.keys;
    }

    Tensor k_, v_, table_;
    double bytes_;

  public:
    const std::int64_t count;
};

void measure(const Context& ctx, const Flags& flags, const DecodeShape& shape, double copy_rate,
             Table& table) {
    const auto& [texts, keys, kv_heads, head_dim, tokens] = shape;
    const Caches caches(ctx, flags, shape);
    const RandomNumbers numbers(ctx);
    const auto heads_of = [&](std::int64_t heads) {
        return numbers(ctx, {shape.texts, shape.tokens, heads, shape.head_dim}, storage_dtype(flags.dtype));
    };
    std::vector<std::int32_t> slots,
        positions(static_cast<std::size_t>(texts), static_cast<std::int32_t>(keys - tokens));
    for (std::int32_t slot = 0; slot < texts; ++slot) slots.push_back(slot);
    const attention::DecodeInputs in{.q = heads_of(flags.heads),
                                     .k = heads_of(kv_heads),
                                     .v = heads_of(kv_heads),
                                     .slots = from_host(ctx, slots, {texts}),
                                     .positions = from_host(ctx, positions, {texts})};
    const Tensor o = empty_like(ctx, in.q);
    const attention::DecodeScratch scratch(ctx, texts, flags.heads, caches.cache(0), tokens);
    const attention::Options options{.causal = true, .window = {.left = flags.window - 1}};
    const double us = 1e3 * graph_milliseconds(ctx, caches.count, [&](std::int64_t i) {
                          attention::decode(ctx, o, in, caches.cache(i), options, scratch);
                      });
    const double copy_us =
        1e3 * graph_milliseconds(ctx, caches.count, [&](std::int64_t i) { caches.copy(ctx, i); });
    table.add({texts, flags.heads, kv_heads, head_dim, keys, tokens, flags.window, flags.block_tokens,
               name_of(flags.dtype), caches.bytes() / (1 << 20), us, 1e-3 * caches.bytes() / us, copy_us,
               us - copy_us, 1e6 * caches.bytes() / us / copy_rate});
}

int bench_decode(const Flags& flags) {
    const auto check_each = [](const char* flag, const std::vector<std::int64_t>& values, double most) {
        for (const std::int64_t value : values) check_flag(flag, value, {1, most});
    };
    check_each("--mib", flags.mib, 1 << 16);
    check_each("--kv-heads", flags.kv_heads, static_cast<double>(flags.heads));
    check_each("--head-dim", flags.head_dims, 256);
    check_each("--tokens", flags.tokens, static_cast<double>(attention::max_decode_tokens));
    check_flag("--heads", flags.heads, {1, 4096});
    check_flag("--texts", flags.texts, {0, 4096});
    check_flag("--keys", flags.keys, {static_cast<double>(attention::max_decode_tokens), 1 << 24});
    check_flag("--window", flags.window, {0, 1 << 24});
    check_flag("--block-tokens", flags.block_tokens, {0, 1 << 16});
    check_usage(flags.block_tokens == 0 ||
                    (flags.block_tokens >= 16 && (flags.block_tokens & (flags.block_tokens - 1)) == 0),
                "--block-tokens: ", flags.block_tokens, "; expected 0, or a power of two of at least 16");
    for (const std::int64_t kv_heads : flags.kv_heads)
        check_usage(flags.heads % kv_heads == 0, "--kv-heads: ", kv_heads, " does not divide ", flags.heads,
                    " heads");
    const Context ctx(resolve_device(DeviceChoice::cuda), 1);
    const double copy_rate = measure_copy_rate(ctx);
    Table table({{"texts", "texts", Column::Kind::number, 5},
                 {"heads", "H", Column::Kind::number, 4},
                 {"kv_heads", "Hkv", Column::Kind::number, 4},
                 {"head_dim", "D", Column::Kind::number, 4},
                 {"keys", "keys", Column::Kind::number, 7},
                 {"tokens", "T", Column::Kind::number, 3},
                 {"window", "window", Column::Kind::number, 7},
                 {"block_tokens", "block", Column::Kind::number, 5},
                 {"dtype", "dtype", Column::Kind::text, 5},
                 {"mib", "MiB"},
                 {"us", "us"},
                 {"gb_per_s", "GB/s"},
                 {"copy_us", "copy us"},
                 {"over_copy_us", "over copy us", Column::Kind::number, 12},
                 {"of_large_copy", "of large copy", Column::Kind::percent, 13}},
                flags.json);
    for (const std::int64_t head_dim : flags.head_dims)
        for (const std::int64_t kv_heads : flags.kv_heads)
            for (const std::int64_t tokens : flags.tokens) {
                const DecodeShape given{flags.texts, flags.keys, kv_heads, head_dim, tokens};
                if (flags.texts > 0) {
                    measure(ctx, flags, given, copy_rate, table);
                    continue;
                }
                for (const std::int64_t mib : flags.mib)
                    measure(ctx, flags, shape_of_size(flags, mib, given), copy_rate, table);
            }
    return 0;
}

}  // namespace

void add_bench_decode(Command& bench) {
    Command command = bench.add_command(
        "decode", "Time attention in a generation step on a GPU, compared with a copy of as many bytes");
    const auto flags = std::make_shared<Flags>();
    command.add_row_values("--mib", flags->mib,
                           "MiB of keys and values, in texts of --keys keys (default: 1,16,256,4096)");
    command.add_value("--texts", flags->texts, "texts, in place of --mib; 0: as many as --mib says");
    command.add_value("--keys", flags->keys, "keys of a text, with the new ones; with --mib the most");
    command.add_value("--heads", flags->heads, "query heads");
    command.add_row_values("--kv-heads", flags->kv_heads, "key and value heads (default: 32,8,4)");
    command.add_row_values("--head-dim", flags->head_dims, "width of a head (default: 64,128)");
    command.add_row_values("--tokens", flags->tokens, "new tokens per text (default: 1,4,16)");
    command.add_value("--window", flags->window, "keys that a token sees, at most; 0: all");
    command.add_value("--block-tokens", flags->block_tokens,
                      "tokens in a block of the cache; 0: one block per text");
    command.add_value("--dtype", flags->dtype, "type of Q, K and V");
    command.add_switch("--json", flags->json, "print one JSON object per row");
    command.set_action([flags] { return bench_decode(*flags); });
}

}  // namespace gradtile::cli

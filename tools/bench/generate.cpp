// gradtile bench generate: times greedy generation with a key-value cache: the prompt in one pass, then token
// by token. A token reads every weight once, and the cached keys and values for all texts. So the time per
// token is compared with the time to read these bytes: on a CPU only the weights, on a GPU also the keys and
// values, at a large copy's rate.
#include <algorithm>
#include <cstring>

#include <gradtile/core/available_memory.h>
#include <gradtile/tools/bench/benchmarks.h>
#include <gradtile/tools/bench/step_flags.h>
#include <gradtile/tools/command_line/table.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/train/model/language_model.h>

namespace gradtile::cli {
namespace {

struct Flags {
    explicit Flags(Command& command) : step(command, &SettingUsers::bench_generate) {}
    StepFlags step;
    std::vector<std::int64_t> texts{1};
    std::int64_t prompt = 0, tokens = 0;  // 0: half of the context
};

struct Lengths {
    std::int64_t prompt, tokens;
};

Lengths lengths_of(const Flags& flags, std::int64_t context) {
    check_flag("--prompt-tokens", flags.prompt, {0, static_cast<double>(context - 1)});
    const std::int64_t prompt =
        flags.prompt > 0 ? flags.prompt
                         : std::clamp<std::int64_t>(context / 2, 1, std::max<std::int64_t>(1, context - 1));
    const std::int64_t room = std::max<std::int64_t>(1, context - prompt);
    check_flag("--tokens", flags.tokens, {0, static_cast<double>(room)});
    return {prompt, flags.tokens > 0 ? flags.tokens : room};
}

std::size_t bytes_of_weights(const ModelConfig& config, DType dtype) {
    ParameterStore parameters;
    const Transformer transformer(config, parameters);
    return static_cast<std::size_t>(parameters.count()) * size_of(dtype);
}

/// Throws Error when the weights and all texts' caches do not fit.
void check_memory(const Context& ctx, const ModelConfig& config, DType dtype, std::int64_t texts,
                  const Lengths& lengths) {
    const double cache = KeyValueCache::bytes_of_text(config, dtype, lengths.prompt + lengths.tokens);
    const double needed =
        static_cast<double>(bytes_of_weights(config, dtype)) + static_cast<double>(texts) * cache;
    const std::size_t available = available_memory(ctx.device());
    check(needed <= static_cast<double>(available), "bench generate: needs ",
          static_cast<std::int64_t>(needed / (1 << 20)) + 1, " MiB; expected at most the ", available >> 20,
          " MiB available (fewer --texts need less)");
}

/// Milliseconds for one generation.
struct Times {
    double prefill, per_token;
};

Times generate(const LanguageModel& model, std::int64_t texts, const Lengths& lengths) {
    const auto vocabulary = static_cast<std::uint64_t>(model.transformer.config.vocabulary);
    std::vector<std::vector<std::int32_t>> tokens(static_cast<std::size_t>(texts));
    std::vector<NextToken::Text> views;
    for (std::size_t text = 0; text < tokens.size(); ++text) {
        for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(lengths.prompt); ++i)
            tokens[text].push_back(static_cast<std::int32_t>((7 * i + 3 * text + 1) % vocabulary));
        views.push_back({static_cast<std::int64_t>(text), tokens[text]});
    }
    NextToken next(model, texts);
    next.reserve(lengths.prompt + lengths.tokens, texts);
    const auto draw = [&] {
        const std::vector<std::int32_t> drawn = next.most_likely(views);
        for (std::size_t text = 0; text < tokens.size(); ++text) {
            tokens[text].push_back(drawn[text]);
            views[text].tokens = tokens[text];
        }
    };
    const double prefill = milliseconds(model.ctx, Clock::wall, draw);
    // On a GPU the first token initialises libraries, and the second one is captured as a graph.
    const std::int64_t untimed =
        model.ctx.device().is_cpu() ? 0 : std::min<std::int64_t>(2, lengths.tokens - 1);
    for (std::int64_t i = 0; i < untimed; ++i) draw();
    const double decode = milliseconds(model.ctx, Clock::wall, [&] {
        for (std::int64_t i = untimed; i < lengths.tokens; ++i) draw();
    });
    return {prefill, decode / static_cast<double>(lengths.tokens - untimed)};
}

/// Reads all bytes with all CPU threads, as fast as possible: 64 bytes at a time, combined in four registers.
void read(const Context& ctx, const Tensor& values) {
    using Words [[gnu::vector_size(64), gnu::aligned(8), gnu::may_alias]] = std::uint64_t;
    constexpr std::int64_t words_bytes = sizeof(Words), blocks_of_thread = 4;
    const std::int64_t steps = static_cast<std::int64_t>(values.bytes()) / (4 * words_bytes);
    const std::int64_t grain =
        std::max<std::int64_t>(1, ceil_div(steps, blocks_of_thread * ctx.threads().size()));
    parallel_ranges(ctx, steps, grain, [&](std::int64_t begin, std::int64_t end) {
        const auto* words = reinterpret_cast<const Words*>(values.raw_data());
        Words sum[4] = {};
        for (std::int64_t i = begin; i < end; ++i)
            for (int j = 0; j < 4; ++j) sum[j] ^= words[4 * i + j];
        const Words all = (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]);
        asm volatile("" : : "m"(all));  // the compiler must compute the sum
    });
}

/// The bytes that a token reads: the weights, without the learned positions and, if the head has its own
/// weight, without the token embedding; and the keys and values that the layers see, averaged over a
/// generation's tokens.
double bytes_of_token(const LanguageModel& model, std::int64_t texts, const Lengths& lengths) {
    const ModelConfig& config = model.transformer.config;
    std::int64_t elements = model.parameters.count();
    if (model.transformer.wpe) elements -= config.context * config.width;
    if (!config.tied_head) elements -= config.vocabulary * config.width;
    double keys = 0;
    for (std::int64_t layer = 0; layer < config.layers; ++layer)
        for (std::int64_t i = 0; i < lengths.tokens; ++i) {
            const std::int64_t length = lengths.prompt + i + 1, window = config.window_of(layer);
            keys += static_cast<double>(window > 0 ? std::min(window, length) : length) /
                    static_cast<double>(lengths.tokens);
        }
    const double cached =
        keys * static_cast<double>(2 * texts * config.key_value_heads() * config.head_dim());
    return (static_cast<double>(elements) + cached) * static_cast<double>(size_of(model.parameters.dtype()));
}

void measure(const Context& ctx, const Step& step, const Flags& flags, std::int64_t texts, Table& table) {
    const ModelConfig& config = step.config.model;
    const Lengths lengths = lengths_of(flags, config.context);
    check_memory(ctx, config, step.dtype(), texts, lengths);
    LanguageModel model(ctx, config, step.dtype(), std::nullopt, {.masters = false, .gradients = false});
    model.parameters.initialize(ctx, Seed{1});
    generate(model, texts, {1, 1});
    std::vector<double> prefill, per_token, reading;
    for (std::int64_t run = 0; run < flags.step.sampling().runs; ++run) {
        const Times times = generate(model, texts, lengths);
        prefill.push_back(times.prefill);
        per_token.push_back(times.per_token);
        if (ctx.device().is_cpu())
            reading.push_back(milliseconds(ctx, Clock::wall, [&] { read(ctx, model.parameters.values()); }));
    }
    const double token_ms = median(per_token), prefill_ms = median(prefill);
    const bool cpu = ctx.device().is_cpu();
    const double bytes =
        cpu ? static_cast<double>(model.parameters.values().bytes()) : bytes_of_token(model, texts, lengths);
    const double read_ms = cpu ? median(reading) : 1e3 * bytes / measure_copy_rate(ctx);
    table.add({step.preset, name_of(step.config.dtype), texts, lengths.prompt,
               1e3 * static_cast<double>(texts * lengths.prompt) / prefill_ms, lengths.tokens, token_ms,
               1e3 * static_cast<double>(texts) / token_ms, 1e-6 * bytes / read_ms, read_ms / token_ms});
}

int bench_generate(const Flags& flags) {
    const std::vector<Step> steps = flags.step.steps();
    const Context ctx = context_of(steps.front().config);
    for (const std::int64_t texts : flags.texts) check_flag("--texts", texts, {1, 4096});
    lengths_of(flags, steps.front().config.model.context);
    Table table({{"preset", "preset", Column::Kind::text, 20},
                 {"dtype", "dtype", Column::Kind::text, 5},
                 {"texts", "texts", Column::Kind::number, 6},
                 {"prompt_tokens", "prompt", Column::Kind::number, 7},
                 {"prefill_tokens_per_s", "prefill tokens/s", Column::Kind::number, 16},
                 {"tokens", "tokens", Column::Kind::number, 7},
                 {"ms_per_token", "ms/token"},
                 {"tokens_per_s", "tokens/s"},
                 {"read_gb_per_s", "read GB/s"},
                 {"of_read", "of read", Column::Kind::percent, 8}},
                flags.step.json());
    for (const std::int64_t texts : flags.texts)
        for (const Step& step : steps) measure(ctx, step, flags, texts, table);
    return 0;
}

}  // namespace

void add_bench_generate(Command& bench) {
    Command command = bench.add_command("generate", "Time generation: reading a prompt, then token by token");
    const auto flags = std::make_shared<Flags>(command);
    command.add_row_values("--texts", flags->texts, "texts generated at once");
    command.add_value("--prompt-tokens", flags->prompt, "tokens of each prompt; 0: half of the context");
    command.add_value("--tokens", flags->tokens, "tokens to generate; 0: until the context is full");
    command.set_action([flags] { return bench_generate(*flags); });
}

}  // namespace gradtile::cli

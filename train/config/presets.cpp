#include <functional>
#include <map>

#include <gradtile/core/text/nearest_name.h>
#include <gradtile/train/config/recipe.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {
namespace {

/// Learns stories from `gradtile corpus` in one to four minutes on two cores. Made for a tokenizer of 512
/// tokens, see scripts/demo.sh.
TrainConfig demo() {
    TrainConfig c;
    // Qwen3's blocks, which transformers and llama.cpp can read.
    c.model = as_llama({.layers = 4, .heads = 4, .width = 128, .hidden = 320, .context = 128});
    c.model.tied_head = c.model.qk_norm = true;
    c.batch = 12;
    c.steps = 1400;
    c.optimizer = kind_of<MuonSettings>;
    std::get<MuonSettings>(c.optimizer_settings).split = true;
    c.lr = 2e-2;
    c.min_lr = 0;
    c.schedule = ScheduleKind::wsd;
    c.wsd_decay = 0.7;
    c.warmup = 20;
    c.eval_every = 350;
    c.out = "runs/demo";
    return c;
}

/// Learns conversations from `gradtile corpus --dialogues`, for `gradtile chat`, in a few minutes on two
/// cores.
TrainConfig chat_demo() {
    TrainConfig c;
    // Rotary positions, because answers repeat words from earlier lines, at any distance.
    c.model = as_llama({.layers = 4, .heads = 4, .width = 128, .context = 640});
    c.packed = true;  // conversations are shorter than the context
    c.max_documents = 16;
    c.batch = 4;
    c.steps = 1200;
    c.optimizer = kind_of<MuonSettings>;
    c.lr = 2e-2;
    c.min_lr = 1e-3;
    c.warmup = 50;
    c.eval_every = 400;
    c.out = "runs/chat-demo";
    return c;
}

/// nanoGPT's character-level Shakespeare example, in a size for a CPU.
TrainConfig shakespeare_char_cpu() {
    TrainConfig c;
    c.model = {
        .layers = 4, .heads = 4, .width = 128, .context = 64, .activation = Activation::gelu, .bias = false};
    c.batch = 12;
    c.steps = 2000;
    c.out = "runs/shakespeare-char-cpu";
    return c;
}

/// nanoGPT's character-level Shakespeare example.
TrainConfig shakespeare_char() {
    TrainConfig c;
    c.model = {
        .layers = 6, .heads = 6, .width = 384, .context = 256, .activation = Activation::gelu, .bias = false};
    c.training = {.dropout = 0.2, .attention_dropout = 0.2};
    c.batch = 64;
    c.steps = 5000;
    c.eval_every = 250;
    c.out = "runs/shakespeare-char";
    return c;
}

/// The GPT-2 model sizes, with GPT-3's batch of half a million tokens and nanoGPT's schedule. The batch is a
/// power of two, so that many GPU counts divide it.
TrainConfig gpt2(std::int64_t layers, std::int64_t heads, std::int64_t width, double lr, const char* out) {
    TrainConfig c;
    c.model = {.layers = layers, .heads = heads, .width = width, .context = 1024, .vocabulary = 50257};
    c.batch = 512;
    c.micro_batch = 4;
    c.steps = 600000;
    c.lr = lr;
    c.min_lr = lr / 10;
    c.warmup = 2000;
    std::get<AdamWSettings>(c.optimizer_settings).beta2 = 0.95;
    c.eval_every = 1000;
    c.save_every = 1000;
    c.out = out;
    return c;
}

/// A small Llama-type model: rotary positions, RMSNorm, SwiGLU, grouped queries, an untied head.
TrainConfig llama_tiny() {
    TrainConfig c;
    c.model = as_llama({.layers = 6, .heads = 6, .kv_heads = 2, .width = 192, .context = 128});
    c.batch = 12;
    c.steps = 3000;
    std::get<AdamWSettings>(c.optimizer_settings).beta2 = 0.95;
    c.out = "runs/llama-tiny";
    return c;
}

/// Qwen2.5-0.5B's shape (Qwen Team 2024) without its query, key and value biases, for token files with its
/// vocabulary.
TrainConfig llama_500m() {
    TrainConfig c;
    c.model = as_llama({.layers = 24,
                        .heads = 14,
                        .kv_heads = 2,
                        .width = 896,
                        .hidden = 4864,
                        .context = 1024,
                        .vocabulary = 151936,
                        .rope_base = 1e6,
                        .norm_epsilon = 1e-6});
    c.model.tied_head = true;
    c.batch = 512;
    c.micro_batch = 4;
    c.steps = 100000;
    c.lr = 5e-4;
    c.min_lr = 5e-5;
    c.warmup = 2000;
    std::get<AdamWSettings>(c.optimizer_settings).beta2 = 0.95;
    c.eval_every = 1000;
    c.save_every = 1000;
    c.out = "runs/llama-0.5b";
    return c;
}

/// A small Gemma 2 (Gemma Team 2024): norms before and after each branch, GeGLU, scaled embeddings, heads
/// wider than width / heads, a window in every second layer, and softcaps on scores and logits.
TrainConfig gemma2_tiny() {
    TrainConfig c = llama_tiny();
    c.model.heads = 4;
    c.model.head_width = 64;
    c.model.block = BlockKind::sandwich_norm;
    c.model.norm_offset = true;
    c.model.activation = Activation::geglu_tanh;
    c.model.scaled_embedding = true;
    c.model.tied_head = true;
    c.model.window = 32;
    c.model.window_pattern = 2;
    c.model.softcap = 50;
    c.model.logit_softcap.limit = 30;
    c.out = "runs/gemma2-tiny";
    return c;
}

/// llama-tiny with GPT-OSS's attention: a window in every second layer, and sinks.
TrainConfig gpt_oss_tiny() {
    TrainConfig c = llama_tiny();
    c.model.window = 32;
    c.model.window_pattern = 2;
    c.model.sinks = true;
    c.out = "runs/gpt-oss-tiny";
    return c;
}

/// A small GPT-2-type model with ALiBi instead of learned positions.
TrainConfig alibi_tiny() {
    TrainConfig c;
    c.model = {.layers = 6, .heads = 6, .width = 192, .context = 128, .positions = Positions::alibi};
    c.batch = 12;
    c.steps = 3000;
    c.out = "runs/alibi-tiny";
    return c;
}

/// llama-tiny on packed documents, such as the stories from `gradtile corpus`. The context is longer, so that
/// most windows hold a border between documents.
TrainConfig packed_tiny() {
    TrainConfig c = llama_tiny();
    c.model.context = 512;
    c.training.attention_dropout = 0.1;
    c.batch = 4;
    c.packed = true;
    c.out = "runs/packed-tiny";
    return c;
}

/// The run that docs/speedrun.md measured, at the size of GPT-2 124M. Its windows grow in the first half.
TrainConfig speedrun() {
    TrainConfig c =
        recipe_config(recipe::reference_depth,
                      static_cast<double>(recipe::reference_steps * recipe::reference_step_tokens));
    c.window_start = 128;
    c.window_warmup = c.steps / 2;
    c.out = "runs/speedrun";
    return c;
}

/// The recipe at the least depth, in five minutes on any CPU: of widths 128, 192 and 256, half of the rule's
/// is the best in this time on two cores. The rates are those of the rule's width.
TrainConfig speedrun_cpu() {
    TrainConfig c = recipe_config(recipe::min_depth, recipe_tokens(recipe::min_depth));
    c.model.width = 128;
    c.model.heads = 2;
    c.model.query_scalar /= 2;  // heads are half as wide
    c.model.context = 128;
    c.batch = 8;
    c.micro_batch = 0;
    c.steps = 0;
    c.time_budget = "5m";
    c.dtype = TrainDType::f32;
    c.out = "runs/speedrun-cpu";
    return c;
}

using Presets = std::map<std::string, std::function<TrainConfig()>>;

/// Adds depth-4 to depth-20.
Presets with_depths(Presets table) {
    for (std::int64_t depth = recipe::min_depth; depth <= recipe::max_depth; ++depth)
        table.emplace(preset_of_depth(depth), [depth] { return recipe_config(depth, recipe_tokens(depth)); });
    return table;
}

const Presets& presets() {
    static const Presets table = with_depths({
        {"demo", demo},
        {"chat-demo", chat_demo},
        {"shakespeare-char-cpu", shakespeare_char_cpu},
        {"shakespeare-char", shakespeare_char},
        {"gpt2-124m", [] { return gpt2(12, 12, 768, 6e-4, "runs/gpt2-124m"); }},
        {"gpt2-350m", [] { return gpt2(24, 16, 1024, 3e-4, "runs/gpt2-350m"); }},
        {"gpt2-774m", [] { return gpt2(36, 20, 1280, 2.5e-4, "runs/gpt2-774m"); }},
        {"llama-tiny", llama_tiny},
        {"llama-0.5b", llama_500m},
        {"gemma2-tiny", gemma2_tiny},
        {"gpt-oss-tiny", gpt_oss_tiny},
        {"alibi-tiny", alibi_tiny},
        {"packed-tiny", packed_tiny},
        {"speedrun", speedrun},
        {"speedrun-cpu", speedrun_cpu},
    });
    return table;
}

}  // namespace

std::string preset_of_depth(std::int64_t depth) {
    return concat("depth-", depth);
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const auto& [name, make] : presets()) names.push_back(name);
    return names;
}

TrainConfig preset(const std::string& name) {
    const auto found = presets().find(name);
    if (found == presets().end()) {
        const std::vector<std::string> names = preset_names();
        std::string list;
        for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
        throw Error(
            concat("preset: '", name, "' is unknown", did_you_mean(name, names), " (known: ", list, ")"));
    }
    return found->second();
}

}  // namespace gradtile

// A training loop without the Trainer: data, model, loss, gradients, clipping, update.
#include <cmath>
#include <fstream>
#include <iostream>

#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/corpus/corpus.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/schedule.h>

using namespace gradtile;

int main() {
    const Context ctx{Device::cpu()};
    std::ofstream("training_loop_stories.txt") << generate_corpus(100'000, Seed{1}).text;
    const Dataset data = load_dataset({.data = "training_loop_stories.txt"});

    ParameterStore parameters;
    const Transformer model(
        {.layers = 2, .heads = 2, .width = 32, .context = 32, .vocabulary = data.vocabulary}, parameters);
    parameters.allocate(ctx, DType::f32);
    parameters.initialize(ctx, Seed{1});

    ElementwiseOptimizer optimizer(ctx, parameters, AdamW{.beta2 = 0.99, .weight_decay = 0.1});
    const Schedule schedule{.lr = 5e-3, .min_lr = 5e-4, .warmup = 20, .horizon = 200};
    DataLoader loader(data.train, {.context = 32, .seed = Seed{1}});
    const Batch batch = empty_batch(ctx, 16, 32);

    double first_loss = 0.0, last_loss = 0.0;
    for (std::int64_t step = 1; step <= schedule.horizon; ++step) {
        loader.next(batch);
        parameters.reset_gradients();
        Transformer::Saved saved;
        const Tensor loss = model.forward(ctx, batch.tokens, batch.targets, saved);
        model.backward(ctx, std::move(saved));
        const Clip clip = clip_global_norm(ctx, parameters.gradients(), {.max_norm = 1.0, .loss = loss});
        optimizer.step(ctx, schedule(step), {.gradient_scale = clip.scale});

        last_loss = to_host(ctx, loss).front();
        if (step == 1) first_loss = last_loss;
        if (step % 50 == 0) std::cout << "step " << step << "  loss " << last_loss << '\n';
    }
    // An untrained model predicts uniformly over the vocabulary.
    const double untrained = std::log(static_cast<double>(data.vocabulary));
    std::cout << "from " << first_loss << " (ln V = " << untrained << ") to " << last_loss << '\n';
    return std::abs(first_loss - untrained) < 0.2 && last_loss < 2.7 ? 0 : 1;
}

// The rows of layers and transformer blocks.
#include "operand_rows.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/head_transform.h>
#include <gradtile/layers/linear_activation.h>
#include <gradtile/layers/most_likely.h>

namespace gradtile {

void Operators::add_layers(std::vector<OperandRow>& all) const {
    const Tensor x = numbers({3, 4}), dy = numbers({3, 4});
    for (const ActivationTraits& traits : activation_table) {
        const ActivationLayer layer{traits.activation};
        const Tensor half = numbers({3, traits.gated ? 2 : 4});
        const char* const prefix = traits.name.data();
        all.push_back({"layers/activation.h: forward", prefix, {x}, [&, layer](const Operands& t) {
                           ActivationLayer::Saved saved;
                           layer.forward(ctx, t[0], saved);
                       }});
        all.push_back({"layers/activation.h: backward", prefix, {half, x}, [&, layer](const Operands& t) {
                           layer.backward(ctx, t[0], {t[1]});
                       }});
        all.push_back({"layers/activation.h: forward_into", prefix, {half, x}, [&, layer](const Operands& t) {
                           layer.forward_into(ctx, t[0], t[1]);
                       }});
        all.push_back({"layers/activation.h: backward_into",
                       prefix,
                       {numbers({3, 4}), half, x},
                       [&, layer](const Operands& t) { layer.backward_into(ctx, t[0], t[1], t[2]); }});
    }
    all.push_back({"layers/column_sums.h: add_column_sums",
                   "column_sums: ",
                   {numbers({4}), dy, numbers({1, 4})},
                   [&](const Operands& t) {
                       add_column_sums(ctx, {.grad = t[0], .write = GradientWrite::overwrite}, {t[1], t[2]});
                   },
                   {0, 2}});
    all.push_back({"layers/column_sums.h: empty_column_sums", "column_sums: ", {x}, [&](const Operands& t) {
                       empty_column_sums(ctx, t[0]);
                   }});
    const Tensor targets = ids({3});
    all.push_back({"layers/cross_entropy_head.h: forward",
                   "cross_entropy: ",
                   {x, targets, numbers({1}, DType::f64)},
                   [&](const Operands& t) {
                       CrossEntropyHead::Saved saved;
                       head.forward(ctx, t[0], t[1], saved, 1, t[2]);
                   },
                   {2}});
    all.push_back({"layers/cross_entropy_head.h: backward", "cross_entropy: ", {x}, [&](const Operands& t) {
                       head.backward(ctx, {t[0]});
                   }});
    all.push_back(
        {"layers/cross_entropy_head.h: loss", "cross_entropy: ", {x, targets}, [&](const Operands& t) {
             head.loss(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/cross_entropy_head.h: losses", "cross_entropy: ", {x, targets}, [&](const Operands& t) {
             head.losses(ctx, t[0], t[1]);
         }});
    all.push_back({"layers/cross_entropy_head.h: logits",
                   "cross_entropy: ",
                   {x, numbers({3, 8})},
                   [&](const Operands& t) { head.logits(ctx, t[0], t[1]); },
                   {1}});
    all.push_back({"layers/dropout.h: forward", "dropout: ", {x}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.forward(ctx, t[0], key, saved);
                   }});
    all.push_back({"layers/dropout.h: forward that drops nothing", "dropout: ", {x}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.forward(ctx, t[0], DropoutKey{}, saved);
                   }});
    all.push_back({"layers/dropout.h: backward", "dropout: ", {dy}, [&](const Operands& t) {
                       dropout.backward(ctx, t[0], {.key = key});
                   }});
    all.push_back(
        {"layers/dropout.h: backward that drops nothing", "dropout: ", {dy}, [&](const Operands& t) {
             dropout.backward(ctx, t[0], {.key = DropoutKey{}});
         }});
    all.push_back({"layers/dropout.h: add_residual", "dropout: ", {x, dy}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.add_residual(ctx, t[0], t[1], key, saved);
                   }});
    const Tensor tokens = ids({1, 3}), rows = numbers({1, 3, 4});
    all.push_back({"layers/embedding.h: forward", "embedding: ", {tokens}, [&](const Operands& t) {
                       Embedding::Saved saved;
                       embedding.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/embedding.h: backward", "embedding: ", {rows, tokens}, [&](const Operands& t) {
                       embedding.backward(ctx, t[0], {.tokens = t[1]});
                   }});
    all.push_back(
        {"layers/embedding.h: forward of positions", "position_embedding: ", {rows}, [&](const Operands& t) {
             PositionEmbedding::Saved saved;
             positions.forward(ctx, t[0], saved);
         }});
    all.push_back(
        {"layers/embedding.h: forward_at", "position_embedding: ", {rows, tokens}, [&](const Operands& t) {
             PositionEmbedding::Saved saved;
             positions.forward_at(ctx, t[0], t[1], saved);
         }});
    all.push_back(
        {"layers/embedding.h: backward of positions", "position_embedding: ", {rows}, [&](const Operands& t) {
             positions.backward(ctx, t[0], {.start = 0});
         }});
}

void Operators::add_norms_and_fused_layers(std::vector<OperandRow>& all) const {
    const Tensor x = numbers({3, 4}), dy = numbers({3, 4}), out = numbers({3, 6});
    all.push_back({"layers/fused_linear.h: fused_linear_in_one_kernel",
                   "fused_linear: ",
                   {out, x, numbers({4}), numbers({4}), numbers({6, 4}), numbers({6}), numbers({3, 6})},
                   [&](const Operands& t) {
                       fused_linear_in_one_kernel(ctx, t[0], t[1],
                                                  {.norm = NormParameters{.weight = t[2], .bias = t[3]},
                                                   .weight = t[4],
                                                   .bias = t[5],
                                                   .residual = t[6]});
                   },
                   {3, 5, 6}});
    all.push_back({"layers/fused_linear.h: fuses_products",
                   "fused_linear: ",
                   {x},
                   [&](const Operands& t) { fuses_products(ctx, t[0]); },
                   {0}});
    const Tensor to_transform = numbers({1, 3, 2, 4}), rstd = numbers({1, 3, 2});
    const Operands norm{numbers({4}), numbers({4}), numbers({3, 2}), numbers({3, 2})};
    const auto transform_of = [](const Operands& t, std::size_t first) {
        return HeadTransform{.queries = 1,
                             .q_weight = t[first],
                             .k_weight = t[first + 1],
                             .epsilon = 1e-5,
                             .angles = {t[first + 2], t[first + 3]}};
    };
    all.push_back({"layers/head_transform.h: transform_heads",
                   "head_transform: ",
                   {numbers({1, 3, 2, 4}), rstd, to_transform, norm[0], norm[1], norm[2], norm[3]},
                   [&, transform_of](const Operands& t) {
                       transform_heads(ctx, t[0], t[1], t[2], transform_of(t, 3));
                   }});
    all.push_back({"layers/head_transform.h: differentiate_heads",
                   "head_transform: ",
                   {numbers({1, 3, 2, 4}), rstd, to_transform, norm[0], norm[1], norm[2], norm[3]},
                   [&, transform_of](const Operands& t) {
                       differentiate_heads(ctx, t[0], t[1], t[2], transform_of(t, 3));
                   }});
    const auto add_norm = [&](const NormLayer& layer, const char* prefix) {
        Operands saved{x, numbers({3})};
        if (layer.centred) saved.push_back(numbers({3}));
        const auto saved_of = [&](const Operands& t, std::size_t first) {
            return NormLayer::Saved{
                .x = t[first], .mean = layer.centred ? t[first + 2] : Tensor(), .rstd = t[first + 1]};
        };
        const auto with_saved = [&](Operands operands) {
            operands.insert(operands.end(), saved.begin(), saved.end());
            return operands;
        };
        all.push_back({"layers/norm.h: forward",
                       prefix,
                       {x, dy},
                       [&](const Operands& t) {
                           NormLayer::Saved unused;
                           const Tensor branch = t[1].defined() ? cast(ctx, t[1], t[1].dtype()) : Tensor();
                           layer.forward(ctx, Residual{.x = t[0], .branch = branch}, unused);
                       },
                       {1}});
        all.push_back({"layers/norm.h: backward", prefix, with_saved({dy}),
                       [&, saved_of](const Operands& t) { layer.backward(ctx, t[0], saved_of(t, 1)); }});
        all.push_back(
            {"layers/norm.h: backward_add", prefix, with_saved({dy, numbers({3, 4})}),
             [&, saved_of](const Operands& t) { layer.backward_add(ctx, t[0], saved_of(t, 2), t[1]); }});
    };
    add_norm(layer_norm, "layer_norm: ");
    add_norm(rms_norm, "rms_norm: ");
}

void Operators::add_linear_layers(std::vector<OperandRow>& all) const {
    const Tensor x = numbers({3, 4}), out = numbers({3, 6});
    all.push_back({"layers/linear.h: forward", "linear ", {x}, [&](const Operands& t) {
                       Linear::Saved saved;
                       linear.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/linear.h: forward_onto", "linear ", {out, x}, [&](const Operands& t) {
                       Linear::Saved saved;
                       linear.forward_onto(ctx, Residual{t[0]}, t[1], saved);
                   }});
    all.push_back({"layers/linear.h: forward_in_one_kernel",
                   "linear ",
                   {x},
                   [&](const Operands& t) { linear.forward_in_one_kernel(ctx, t[0]); },
                   {0}});
    all.push_back({"layers/linear.h: backward", "linear ", {out, x}, [&](const Operands& t) {
                       linear.backward(ctx, t[0], {t[1]});
                   }});
    all.push_back({"layers/linear.h: accumulate_gradients", "linear ", {out, x}, [&](const Operands& t) {
                       linear.accumulate_gradients(ctx, t[0], {t[1]});
                   }});
    all.push_back({"layers/linear_activation.h: linear_activation_forward",
                   "linear_activation: ",
                   {out, numbers({3, 6}), x, numbers({6, 4}), numbers({6})},
                   [&](const Operands& t) {
                       linear_activation_forward(ctx, t[0], t[1], t[2], t[3], t[4], Activation::gelu_tanh);
                   },
                   {4}});
    all.push_back({"layers/linear_activation.h: linear_activation_backward",
                   "linear_activation backward: ",
                   {out, x, numbers({4, 6}), numbers({3, 6})},
                   [&](const Operands& t) {
                       linear_activation_backward(ctx, t[0], t[1], t[2], t[3], Activation::gelu_tanh);
                   }});
    all.push_back({"layers/linear.h: add_forward", "low_rank_adapter: ", {out, x}, [&](const Operands& t) {
                       adapter.add_forward(ctx, t[0], t[1]);
                   }});
    all.push_back({"layers/linear.h: add_backward",
                   "low_rank_adapter: ",
                   {numbers({3, 4}), out, x},
                   [&](const Operands& t) { adapter.add_backward(ctx, t[0], t[1], t[2]); },
                   {0}});
    all.push_back({"layers/most_likely.h: most_likely_tokens",
                   "most_likely_tokens: ",
                   {ids({3}), x},
                   [&](const Operands& t) { most_likely_tokens(ctx, t[0], t[1]); }});
    all.push_back({"layers/rope.h: angles_at", "rope: ", {ids({3})}, [&](const Operands& t) {
                       rope.angles_at(ctx, t[0], DType::f32);
                   }});
    const Operands rotated{numbers({1, 3, 2, 4}), numbers({3, 2}), numbers({3, 2})};
    all.push_back({"layers/rope.h: forward", "rope: ", rotated, [&](const Operands& t) {
                       rope.forward(ctx, t[0], Rope::Angles{t[1], t[2]});
                   }});
    all.push_back({"layers/rope.h: backward", "rope: ", rotated, [&](const Operands& t) {
                       rope.backward(ctx, t[0], Rope::Angles{t[1], t[2]});
                   }});
}

void Operators::add_learned_factors(std::vector<OperandRow>& all) const {
    const auto add = [&](const char* name, const char* prefix, const Operands& operands, auto call) {
        all.push_back({name, prefix, operands, call});
    };
    const Tensor x = numbers({1, 3, 8}), tokens = ids({1, 3}), logits = numbers({1, 3, 2});
    const auto heads = [&] { return numbers({1, 3, 2, 4}); };
    HeadGate::Saved gates;
    gate.forward(ctx, x, heads(), gates);
    add("layers/learned_factors.h: forward", "weighted_sum: ", {x, x}, [&](const Operands& t) {
        WeightedSum::Saved saved;
        weighted_sum.forward(ctx, t, saved);
    });
    add("layers/learned_factors.h: backward", "weighted_sum: ", {numbers({1, 3, 8})},
        [&, x](const Operands& t) {
            std::vector<Tensor> others(1);
            weighted_sum.backward(ctx, t[0], {.terms = {x, x}}, others);
        });
    add("layers/learned_factors.h: forward of a gate", "head_gate: ", {x, heads()}, [&](const Operands& t) {
        HeadGate::Saved saved;
        gate.forward(ctx, t[0], t[1], saved);
    });
    add("layers/learned_factors.h: forward_add", "head_gate: ", {heads(), x, heads()},
        [&](const Operands& t) {
            HeadGate::Saved saved;
            gate.forward_add(ctx, t[0], t[1], t[2], saved);
        });
    add("layers/learned_factors.h: forward_add of embeddings", "", {heads(), x, tokens},
        [&](const Operands& t) {
            ValueEmbedding::Saved saved;
            value.forward_add(ctx, t[0], t[1], {.tokens = t[2]}, saved);
        });
    add("layers/learned_factors.h: recompute", "head_gate: ", {heads()},
        [&, gates](const Operands& t) { gate.recompute(ctx, t[0], gates); });
    add("layers/learned_factors.h: backward_heads", "head_gate: ", {heads(), heads(), heads()},
        [&, gates](const Operands& t) { gate.backward_heads(ctx, t[0], t[1], t[2], gates); });
    add("layers/learned_factors.h: backward_add_x", "", {numbers({1, 3, 8}), logits},
        [&, gates](const Operands& t) { gate.backward_add_x(ctx, t[0], t[1], gates); });
    add("layers/learned_factors.h: backward_through", "", {x, heads()}, [&, gates](const Operands& t) {
        Tensor d_logits;
        gate.backward_through(ctx, model.blocks[0].attn.proj, t[0], {}, t[1], gates, d_logits);
    });
    add("layers/learned_factors.h: backward_values", "", {heads(), tokens}, [&, gates](const Operands& t) {
        value.backward_values(ctx, t[0], {.tokens = t[1]}, {.gate = gates});
    });
    const auto table = [](const Operands& t) {
        PreviousTokens previous;
        previous.place = t[1];
        previous.sibling = t[2];
        return previous;
    };
    add("layers/documents.h: previous_rows", "previous_token: ", {heads(), tokens, tokens},
        [&, table](const Operands& t) { previous_rows(ctx, t[0], table(t)); });
    add("layers/documents.h: previous_rows_backward", "previous_token: ", {heads(), tokens, tokens},
        [&, table](const Operands& t) { previous_rows_backward(ctx, t[0], table(t)); });
    all.push_back({"layers/documents.h: previous_rows_of_step",
                   "previous_token: ",
                   {numbers({1, 1, 2, 4}), numbers({2, 16, 2, 4}), ids({1}), ids({1}), ids({1, 1})},
                   [&](const Operands& t) { previous_rows_of_step(ctx, t[0], t[1], t[2], t[3], t[4]); },
                   {4}});
    all.push_back({"layers/documents.h: PreviousTokens",
                   "previous_token: ",
                   {tokens},
                   [&](const Operands& t) { PreviousTokens(ctx, {.positions = t[0]}); },
                   {0}});  // without documents
}

void Operators::add_transformer(std::vector<OperandRow>& all) const {
    const Tensor tokens = ids({1, 3}), targets = ids({1, 3}), x = numbers({1, 3, 8});
    const TrainingPass pass;
    all.push_back({"layers/transformer/mlp.h: forward", "mlp: ", {x}, [&](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/mlp.h: forward_hidden", "mlp: ", {x}, [&](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward_hidden(ctx, t[0], saved);
                   }});
    all.push_back(
        {"layers/transformer/mlp.h: forward_onto", "", {numbers({1, 3, 8}), x}, [&](const Operands& t) {
             Mlp::Saved saved;
             block.mlp.forward_onto(ctx, Residual{t[0]}, t[1], saved);
         }});
    all.push_back({"layers/transformer/mlp.h: backward", "linear ", {x}, [&, x](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward(ctx, x, saved);
                       block.mlp.backward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: forward",
                   "multi_head_attention: ",
                   {x},
                   [&, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward(ctx, t[0], pass, saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: forward_onto",
                   "",
                   {numbers({1, 3, 8}), x},
                   [&, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward_onto(ctx, Residual{t[0]}, t[1], pass, saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: backward",
                   "linear ",
                   {x},
                   [&, x, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward(ctx, x, pass, saved);
                       block.attn.backward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: queries_and_keys",
                   "multi_head_attention: ",
                   {numbers({1, 3, 24})},
                   [&](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.queries_and_keys(ctx, t[0], {}, saved);
                   }});
    all.push_back({"layers/transformer/transformer_block.h: forward",
                   "layer_norm: ",
                   {x},
                   [&, pass](const Operands& t) {
                       TransformerBlock::Saved saved;
                       block.forward(ctx, Residual{t[0]}, pass, saved);
                   }});
    all.push_back(
        {"layers/transformer/transformer_block.h: backward", "linear ", {x}, [&, x, pass](const Operands& t) {
             TransformerBlock::Saved saved;
             block.forward(ctx, Residual{x}, pass, saved);
             block.backward(ctx, t[0].defined() ? cast(ctx, t[0], t[0].dtype()) : Tensor(), saved);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: forward", "", {tokens, targets}, [&](const Operands& t) {
             Transformer::Saved saved;
             model.forward(ctx, t[0], t[1], saved);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: evaluate", "", {tokens, targets}, [&](const Operands& t) {
             model.evaluate(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: target_losses", "", {tokens, targets}, [&](const Operands& t) {
             model.target_losses(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: logits", "transformer: ", {tokens}, [&](const Operands& t) {
             model.logits(ctx, t[0]);
         }});
    all.push_back({"layers/transformer/transformer.h: logits_of_all",
                   "transformer: ",
                   {tokens},
                   [&](const Operands& t) { model.logits_of_all(ctx, t[0]); }});
    const EqualTexts texts{.first = {.length = 1}, .count = 1};
    all.push_back({"layers/transformer/key_value_cache.h: write",
                   "key/value cache: ",
                   {cache.layer(0).k, numbers({1, 1, config.key_value_heads(), config.head_dim()})},
                   [&, texts](const Operands& t) { cache.write(ctx, t[0], texts, 0, t[1]); }});
    all.push_back({"layers/transformer/key_value_cache.h: read",
                   "key/value cache: ",
                   {cache.layer(0).k},
                   [&, texts](const Operands& t) { cache.read(ctx, t[0], texts, 0, 1); }});
    all.push_back({"layers/transformer/transformer.h: next_logits",
                   "next_logits: ",
                   {numbers({1, 16}), ids({1}), ids({1}), ids({1})},
                   [&](const Operands& t) {
                       const attention::DecodeScratch scratch = model.step_scratch(ctx, cache, 1);
                       model.next_logits(
                           ctx, t[0], t[1],
                           {.positions = t[2], .slots = t[3], .cache = cache, .scratch = scratch});
                   }});
}

}  // namespace gradtile

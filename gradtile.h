#pragma once
/// Includes the headers that most programs with gradtile need; tools/tools.h has those of gradtile::tools. A
/// program that includes only the headers it uses compiles faster.

// Tensors, arithmetic, random numbers, matrix products; comparing, printing and checking gradients.
#include <gradtile/core/compare.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gradcheck.h>
#include <gradtile/core/parameter_store.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>
#include <gradtile/core/tensor_math.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/version.h>

// Attention as a separate operator.
#include <gradtile/attention/attention.h>
#include <gradtile/attention/ring_attention.h>
#include <gradtile/attention/row_ranges.h>

// Layers and the transformer made of them.
#include <gradtile/layers/activation.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/transformer/transformer.h>

// Training, checkpoints, and several processes.
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/data/data_loader.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/model/language_model.h>
#include <gradtile/train/optimizers/elementwise_optimizer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/schedule.h>
#include <gradtile/train/tokenizers/tokenizer.h>
#include <gradtile/train/trainer.h>

#include <gradtile/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include <gradtile/core/cuda/cuda_runtime.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/version.h>
#include <gradtile/train/available_memory.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/evaluate.h>
#include <gradtile/train/loss_svg.h>
#include <gradtile/train/resume_point.h>
#include <gradtile/train/saved_algorithms.h>
#include <gradtile/train/shared_start.h>

namespace gradtile {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

DatasetOptions dataset_options(const TrainConfig& config) {
    return {.data = config.data,
            .val_data = config.val_data,
            .val_fraction = config.val_fraction,
            .tokenizer = config.tokenizer,
            .token_type = config.token_type,
            .vocabulary = config.model.vocabulary};
}

/// "the content of data (train.bin)": {"bytes": ..., "hash": ...}, for each file; what all ranks must have
/// alike. Without the directories, which may differ from rank to rank.
void add_contents(json& facts, const TrainConfig& config, const json& content) {
    for (const auto& [name, files] : content.items()) {
        const std::filesystem::path path = name == "data" ? config.data : config.val_data;
        facts[concat("the content of ", name, " (", path.filename().string(), ")")] =
            files.size() == 1 ? files.front() : files;
    }
}

/// In a checkpoint's data: Dataset::content.
constexpr const char* content_key = "content";
// In a checkpoint's meta.
constexpr const char* algorithms_key = "matrix_algorithms";
constexpr const char* to_evaluate_key = "evaluation_left";

// Votes of all processes are added up: more stop than there can be processes is a failure of one of them.
constexpr double vote_to_stop = 1.0, vote_of_failure = 1 << 20;

template <class T>
std::optional<T> optional_of(const json& object, const char* key) {
    if (!object.contains(key) || object[key].is_null()) return std::nullopt;
    return object[key].get<T>();
}

template <class T>
json json_of(const std::optional<T>& value) {
    return value ? json(*value) : json();
}

/// Every core belongs to the processes of this host together, unless each was bound to its own.
int threads_of(const TrainConfig& config, const RankEnvironment& environment) {
    if (config.threads > 0) return static_cast<int>(config.threads);
    const int share = static_cast<int>(std::thread::hardware_concurrency()) / environment.local_size;
    return std::clamp(share, 1, usable_cores());
}

}  // namespace

/// The validation split and the batch it is read through.
struct Trainer::Validation {
    SequentialLoader loader;
    Batch batch;
};

// ---- Making a run ----

Trainer::Trainer(TrainConfig config, MessageHandler on_message, std::shared_ptr<ProcessGroup> group,
                 Purpose purpose)
    : config_(std::move(config)),
      on_message_(group->is_root() ? std::move(on_message) : [](const std::string&) {}),
      group_(std::move(group)) {
    group_->require_equal("settings", json_text(to_json(config_)));
    validate(config_, group_->size());
    Start start;
    if (!config_.init_from.empty())
        start = shared_start(*group_, [&] {
            return Start{config_.init_from, load_checkpoint(config_.init_from, {}, on_message_)};
        });
    build(start.checkpoint ? tokenizer_of(*start.checkpoint, start.source) : std::nullopt);
    make_paths_absolute(config_);  // those of rank 0 are saved; others may have copies of their own
    if (start.checkpoint) {
        replica_->load_weights(*start.checkpoint, start.source);
    } else {
        replica_->initialize(Seed{config_.seed});
    }
    identity_ = group_->broadcast(new_run_identity());
    if (purpose == Purpose::train && !config_.out.empty() && group_->is_root()) {
        // First the memory: a start that fails for want of it leaves no directory.
        prepare_saves(RunDirectory::checkpoints_of(config_.out));
        open_directory(RunDirectory::create(config_, identity_), /*resumed=*/false);
    }
}

Trainer::Trainer(const Resume& resume, MessageHandler on_message, std::shared_ptr<ProcessGroup> group)
    : on_message_(group->is_root() ? std::move(on_message) : [](const std::string&) {}),
      group_(std::move(group)) {
    std::optional<RunDirectory> directory;
    const Start start = shared_start(*group_, [&] {
        directory = RunDirectory::open(resume.directory);
        ResumePoint point = find_resume_point(*directory, resume.restart);
        for (const std::string& line : point.messages) on_message_(line);
        if (!point.checkpoint) return Start{directory->config_file().string(), {}};
        saved_path_ = point.path;
        return Start{point.path.string(), std::move(point.checkpoint)};
    });
    identity_ = group_->broadcast(directory ? directory->identity() : std::string());
    if (start.checkpoint) {
        apply_json(config_, *start.checkpoint->config, start.source);
    } else {
        config_ = shared_config(*group_, directory);
    }
    config_.out = resume.directory.string();
    if (resume.save_every) config_.save_every = *resume.save_every;
    if (resume.threads) config_.threads = *resume.threads;
    if (resume.device) config_.device = *resume.device;
    if (resume.zero) config_.zero = *resume.zero;
    if (resume.data) config_.data = *resume.data;
    if (resume.val_data) {
        check(!config_.val_data.empty() && !resume.val_data->empty(), "val-data: '", *resume.val_data,
              "' when the run was made with '", config_.val_data,
              "'; expected the same data at another place");
        config_.val_data = *resume.val_data;
    }
    group_->require_equal("settings", json_text(to_json(config_)));
    validate(config_, group_->size());

    if (start.checkpoint) {
        const auto content = start.checkpoint->data->find(content_key);
        const bool known = content != start.checkpoint->data->end();
        if (!known)
            on_message_(concat(start.source,
                               ": does not say which data it was trained on; this data is taken "
                               "without a comparison"));
        build(tokenizer_of(*start.checkpoint, start.source), known ? *content : json());
        restore(*start.checkpoint, start.source);
        saved_step_ = given_to_save_ = step_;
    } else {
        build({});
        check(config_.init_from.empty(), "resume: '", resume.directory.string(),
              "' has no checkpoint, and began with other weights; start it again with --init-from ",
              config_.init_from);
        replica_->initialize(Seed{config_.seed});
    }
    make_paths_absolute(config_);
    if (resume.steps) end_ = *resume.steps;
    check(end_ >= 1, "steps: ", end_, "; expected at least 1");
    if (directory && !is_finished()) {
        prepare_saves(directory->checkpoints());
        directory->remove_temporaries();
        open_directory(std::move(*directory), /*resumed=*/true);
    }
}

Trainer::~Trainer() = default;

void Trainer::build(const std::optional<Tokenizer>& tokenizer, const JsonValue& made_with) {
    const RankEnvironment& environment = group_->environment();
    const Context ctx =
        Context(resolve_device(config_.device, environment.local_rank), threads_of(config_, environment))
            .with_tf32(config_.tf32)
            .with_deterministic(config_.model.deterministic);
    communicator_ = make_communicator(ctx, *group_);
    DatasetOptions options = dataset_options(config_);
    options.made_with = made_with;
    Dataset dataset = load_dataset(options, tokenizer);
    if (dataset.tokenizer) {
        const TokenizerKind kind = dataset.tokenizer->kind();
        if (kind != config_.tokenizer)
            on_message_(concat("the checkpoint's tokenizer is used: ", name_of(kind), ", not ",
                               name_of(config_.tokenizer)));
        config_.tokenizer = kind;
    }
    if (config_.model.vocabulary == 0) config_.model.vocabulary = dataset.vocabulary;
    check(config_.model.vocabulary >= dataset.vocabulary, "vocabulary: ", config_.model.vocabulary,
          "; the data needs ", dataset.vocabulary);
    train_tokens_ = dataset.train.size();
    validation_tokens_ = dataset.validation.size();
    source_nll_ = dataset.source_nll;
    data_content_ = dataset.content;
    data_description_ = dataset.description;
    if (config_.model.vocabulary > dataset.vocabulary)
        data_description_.push_back(concat("vocabulary ", grouped(config_.model.vocabulary),
                                           " as set; the data needs ", grouped(dataset.vocabulary),
                                           ", and the rest only costs memory and time (a run with "
                                           "vocabulary ",
                                           dataset.vocabulary, " leaves it out)"));
    json facts{{"vocabulary", config_.model.vocabulary},
               {"training tokens", train_tokens_},
               {"validation tokens", validation_tokens_}};
    add_contents(facts, config_, *data_content_);
    group_->require_equal("data", json_text(facts));

    constexpr std::int64_t mebibyte = 1 << 20;
    const std::size_t sharers = ctx.device().is_cpu() ? static_cast<std::size_t>(environment.local_size) : 1;
    const std::size_t budget = config_.memory_budget > 0
                                   ? static_cast<std::size_t>(config_.memory_budget * mebibyte)
                                   : available_memory(ctx.device()) / sharers;
    const MemoryRequest request = memory_request(config_, ctx.device(), group_->size());
    plan_ = plan_within(ctx, request, budget);
    try {
        allocate(ctx, std::move(dataset));
    } catch (const OutOfMemory& error) {  // others took what was free when the plan was made
        arena_ctx_.reset();
        input_.reset();
        replica_.reset();  // what this run holds is free to it again
        throw Error(concat(error.what(), "; the run needs ", plan_.total(), " bytes, ",
                           what_would_fit(ctx, request, available_memory(ctx.device()))));
    }
}

/// Everything a run holds while it trains.
void Trainer::allocate(const Context& ctx, Dataset dataset) {
    const std::int64_t ranks = group_->size();
    replica_ = std::make_unique<Replica>(ctx, config_, std::move(dataset.tokenizer), *communicator_);
    schedule_ = Schedule::of(config_);
    end_ = config_.steps;

    const std::int64_t context = config_.model.context;
    input_ = std::make_unique<StepInput>(
        ctx,
        DataLoader(std::move(dataset.train), {.context = context,
                                              .seed = Seed{config_.seed},
                                              .rank = group_->rank(),
                                              .ranks = ranks,
                                              .ignore_token = config_.ignore_token}),
        StepInputOptions{.micro_steps = config_.accumulation_steps(ranks),
                         .micro_batch = config_.micro_batch_size(ranks),
                         .schedule = schedule_,
                         .seed = config_.seed});
    result_ = zeros(ctx, {3}, DType::f64);
    host_result_ =
        ctx.device().is_cpu()
            ? result_
            : zeros(host_of(ctx).with_allocator(transfer_allocator(ctx.device())), {3}, DType::f64);
    if (dataset.validation.size() > 0) {
        SequentialLoader loader(dataset.validation, context, config_.ignore_token);
        const std::int64_t windows = std::min(config_.micro_batch_size(ranks), loader.windows());
        validation_ = std::make_unique<Validation>(
            Validation{std::move(loader), empty_batch(host_of(ctx), windows, context)});
    }
    plan_arena();
}

void Trainer::plan_arena() {
    const Context& ctx = model().ctx;
    const auto counting = Arena::for_planning(ctx.device());
    const Context dry = ctx.plan(counting);
    compute_step(dry);
    if (validation_) {
        const Batch batch = upload(dry, validation_->batch);
        model().transformer.evaluate(dry, batch.tokens, batch.targets);
    }
    plan_.activations = counting->peak_bytes();
    plan_.optimizer = optimizer().state_bytes();
    arena_ctx_ = std::make_unique<Context>(
        ctx.with_allocator(std::make_shared<Arena>(ctx.device(), counting->peak_bytes())));
}

void Trainer::prepare_saves(const std::filesystem::path& checkpoints) {
    const RetentionPolicy retention{.keep_last = config_.keep_last, .keep_every = config_.keep_every};
    writer_ = std::make_unique<SnapshotWriter>(CheckpointDirectory(checkpoints, retention), model().ctx);
    if (replica_->parallel.is_sharded()) {
        replica_->reserve_host_memory();
    } else {
        writer_->reserve(snapshot());
    }
}

void Trainer::open_directory(RunDirectory directory, bool resumed) {
    directory_ = std::make_unique<RunDirectory>(std::move(directory));
    metrics_ = std::make_unique<MetricsFile>(
        directory_->metrics_file(), resumed ? step_ : -1,
        to_evaluate_ ? MetricsFile::Last::unwritten : MetricsFile::Last::written);
    if (resumed) history_ = MetricsFile::read(directory_->metrics_file());
}

// ---- State ----

Checkpoint Trainer::snapshot() {
    Checkpoint checkpoint;
    checkpoint.step = step_;
    replica_->save_into(checkpoint);
    checkpoint.config = to_json(config_);
    *checkpoint.data = {{"loader", *input_->state()}, {content_key, *data_content_}};
    if (model().tokenizer) (*checkpoint.data)["tokenizer"] = model().tokenizer->to_json();
    // Every draw is Philox under a key made of the seed and the step it belongs to: there is no other state.
    *checkpoint.rng = {{"generator", "philox4x32-10"}, {"seed", config_.seed}, {"step", step_}};
    *checkpoint.meta = {{"gradtile", version()},
                        {"world_size", group_->size()},
                        {"schedule", {{"horizon", schedule_.horizon}, {"last_step", end_}}},
                        {"val_loss", json_of(val_loss_)},
                        {"best_val_loss", json_of(best_val_loss_)},
                        {"bad_steps", bad_steps_},
                        {"bad_steps_in_a_row", bad_steps_in_a_row_},
                        {"device", concat(model().ctx.device())},
                        {"matrix_library", model().ctx.device().is_cpu() ? cpu_matrix_library() : "cuBLAS"}};
    if (to_evaluate_) (*checkpoint.meta)[to_evaluate_key] = *to_json(*to_evaluate_);
    if (!identity_.empty()) (*checkpoint.meta)[run_identity_key] = identity_;
    if (const auto algorithms = gemm_algorithms(model().ctx); !algorithms.empty())
        (*checkpoint.meta)[algorithms_key] = algorithms_to_json(algorithms);
    return checkpoint;
}

void Trainer::restore(const Checkpoint& checkpoint, const std::string& source) {
    replica_->restore(checkpoint, source);
    try {
        input_->restore(checkpoint.data->at("loader"));
        end_ = checkpoint.meta->at("schedule").at("last_step").get<std::int64_t>();
        bad_steps_ = checkpoint.meta->at("bad_steps").get<std::int64_t>();
        bad_steps_in_a_row_ = checkpoint.meta->at("bad_steps_in_a_row").get<std::int64_t>();
        val_loss_ = optional_of<double>(*checkpoint.meta, "val_loss");
        best_val_loss_ = optional_of<double>(*checkpoint.meta, "best_val_loss");
        best_saved_val_loss_ = best_val_loss_;
        if (checkpoint.meta->contains(to_evaluate_key))
            to_evaluate_ = step_report_from(checkpoint.meta->at(to_evaluate_key));
    } catch (const json::exception& error) {
        throw Error(concat(source, ": is not a training checkpoint: ", reason_of(error)));
    }
    step_ = checkpoint.step;
    restore_algorithms(checkpoint, source);
}

/// So that results do not depend on which algorithms a timing prefers today. Without them a run goes on, too.
void Trainer::restore_algorithms(const Checkpoint& checkpoint, const std::string& source) {
    const auto found = checkpoint.meta->find(algorithms_key);
    if (found == checkpoint.meta->end()) return;
    try {
        const std::vector<GemmAlgorithm> saved = algorithms_from_json(*found);
        if (model().ctx.device().is_cpu() || restore_gemm_algorithms(model().ctx, saved) == saved.size())
            return;
        on_message_(concat(source,
                           ": its matrix algorithms are for another GPU or another cuBLASLt; they are "
                           "chosen anew, and results agree to rounding"));
    } catch (const Error& error) {
        on_message_(concat(source, ": ", error.what(), "; they are chosen anew"));
    }
}

// ---- Steps ----

/// Everything a step does on the device, from the current input to result_; under a planning context,
/// everything it allocates. Nothing in it is known to the host alone, so that it can be replayed. What is
/// left between micro-steps has changed neither weights nor the optimizer's memory.
Trainer::Part Trainer::compute_step(const Context& ctx) {
    DataParallel& parallel = replica_->parallel;
    const std::int64_t ranks = communicator_->size(), micro_steps = config_.accumulation_steps(ranks);
    const Tensor loss = result_.slice(0, 0, 1), votes = result_.slice(0, 1, 1),
                 grad_norm = result_.slice(0, 2, 1);
    fill(ctx, loss, 0.0);
    model().parameters.forget_gradients();
    const ForwardHooks gather = parallel.gather_beside_forward(ctx);
    for (std::int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
        const Batch& batch = input_->micro_batch(micro_step);
        const std::int64_t first_sample = (micro_step * ranks + communicator_->rank()) * batch.tokens.size(0);
        const bool last = micro_step + 1 == micro_steps;
        Transformer::Saved saved;
        const Tensor of_micro_batch = model().transformer.forward(
            ctx, batch.tokens, batch.targets, saved,
            {.target_count = input_->target_count(),
             .dropout = DropoutKey::of_live_step(input_->live_seed(), first_sample),
             .hooks = gather});
        model().transformer.backward(ctx, saved, last ? parallel.sum_beside_backward(ctx) : BackwardHooks());
        axpy(ctx, loss, 1.0, of_micro_batch);
        if (last || ctx.is_planning() || ctx.device().is_cuda()) continue;
        tell_part(StepPart::Kind::micro_steps, micro_step + 1, micro_steps);
        if (vote_to_leave(ctx) == Part::left) {
            dropped_micro_steps_ = micro_step + 1;
            return Part::left;
        }
    }
    model().parameters.complete_gradients(ctx);
    if (ranks > 1) copy(ctx, votes, input_->vote());
    parallel.finish_gradients(ctx);
    parallel.sum(ctx, result_.slice(0, 0, 2));
    ClipOptions clipping{.max_norm = config_.clip, .loss = loss};
    if (parallel.is_sharded())
        clipping.add_other_parts = [&](const Tensor& sum_of_squares) { parallel.sum(ctx, sum_of_squares); };
    const Clip clip = clip_global_norm(ctx, parallel.gradients(), clipping);
    replica_->optimizer->step(ctx, input_->rate(), {.gradient_scale = clip.scale});
    copy(ctx, grad_norm, clip.norm);
    if (ctx.device().is_cuda() && !ctx.is_planning())
        cuda::copy_bytes(host_result_.raw_data(), result_.raw_data(), result_.bytes(), ctx.device(),
                         ctx.stream());
    return Part::done;
}

void Trainer::try_to_capture(const Context& ctx) {
    capture_next_ = false;
    try {
        graph_.capture(ctx, [&] { compute_step(ctx); });
    } catch (const Error& error) {
        on_message_(concat("the step is not replayed as a CUDA graph: ", error.what()));
    }
}

Trainer::Part Trainer::enqueue_step(const Context& ctx) {
    if (capture_next_) try_to_capture(ctx);
    if (graph_.captured()) {
        graph_.replay(ctx);
        return Part::done;
    }
    const Part part = compute_step(ctx);
    const bool first = !steps_enqueued_;
    steps_enqueued_ = true;
    capture_next_ = first && ctx.device().is_cuda() && config_.cuda_graph;
    return part;
}

/// None when the step was dropped: everything is as it was before it.
std::optional<StepReport> Trainer::train_step() {
    const Clock::time_point start = Clock::now();
    const Context& ctx = *arena_ctx_;
    const std::int64_t step = step_ + 1;
    group_->at_step(step);
    const JsonValue data_before = input_->state();
    prepare_input(step);
    if (leaving_) return std::nullopt;
    input_->upload(ctx, group_->is_alone() ? 0.0 : own_vote());
    const Part part = enqueue_step(ctx);
    if (ctx.device().is_cuda()) {
        if (step < end_) prepare_ahead(step + 1);  // while the device works
        const auto waiting = group_->waiting("the sums of a step");
        cuda::synchronize(ctx.device(), ctx.stream());
    }
    const double* const result = host_result_.data<double>();
    if (part == Part::done) count_votes(result[1]);
    if (part == Part::left || failed_) {
        input_->restore(data_before);
        return std::nullopt;
    }
    step_ = step;
    StepReport report{.step = step,
                      .loss = result[0],
                      .lr = schedule_(step),
                      .grad_norm = result[2],
                      .ms = milliseconds_since(start)};
    report.tokens_per_s = static_cast<double>(config_.batch * config_.model.context) / report.ms * 1e3;
    if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) {
        bad_steps_in_a_row_ = 0;
    } else {
        handle_bad_step(report);
    }
    return report;
}

void Trainer::draw_input(std::int64_t step) {
    if (on_prepare_) on_prepare_(step);
    input_->prepare(step);
}

/// Where data cannot be read, a process that is alone leaves the step; one of several takes part in it, with
/// what refuses the update in all of them, and so lets the others know.
void Trainer::prepare_input(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception& error) {
        failure_ = error.what();
        if (group_->is_alone()) {
            count_votes(own_vote());
        } else {
            input_->prepare_refusal(step);
        }
    }
}

/// Ignores a read error: the step under way is complete, and the next step reads again and reports it.
void Trainer::prepare_ahead(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception&) {
    }
}

double Trainer::own_vote() const {
    if (!failure_.empty()) return vote_of_failure;
    return wants_to_stop() ? vote_to_stop : 0.0;
}

void Trainer::count_votes(double sum) {
    leaving_ = leaving_ || sum > 0.0;
    failed_ = failed_ || sum >= vote_of_failure;
}

/// Between two parts of a step or an evaluation, in which all processes take part.
Trainer::Part Trainer::vote_to_leave(const Context& ctx) {
    double votes = own_vote();
    if (!group_->is_alone()) {
        const Tensor sum = from_host(ctx.with_allocator(system_allocator(ctx.device())),
                                     std::span<const double>(&votes, 1), {1}, DType::f64);
        communicator_->all_reduce(ctx, sum);
        votes = item(ctx, sum);
    }
    count_votes(votes);
    return leaving_ ? Part::left : Part::done;
}

void Trainer::tell_part(StepPart::Kind kind, std::int64_t done, std::int64_t all) const {
    const std::int64_t step = kind == StepPart::Kind::micro_steps ? step_ + 1 : step_;
    if (on_part_) on_part_({.step = step, .kind = kind, .done = done, .all = all});
}

/// The optimizer has left weights and gradients as they were.
void Trainer::handle_bad_step(StepReport& report) {
    ++bad_steps_;
    ++bad_steps_in_a_row_;
    const Context& ctx = *arena_ctx_;
    report.not_finite = replica_->first_non_finite_gradient(ctx, *group_);
    if (report.not_finite.empty()) report.not_finite = "loss";
    const bool of_gradient = report.not_finite != "loss";
    on_message_(concat("step ", report.step, ": ", of_gradient ? "the gradient of " : "the ",
                       report.not_finite, " is not finite (loss ", report.loss, "); update not applied (",
                       bad_steps_in_a_row_, " in a row, ", bad_steps_, " in all)"));
}

void Trainer::give_up(const StepReport& report) {
    if (writer_) writer_->wait();
    hear_of_saves();
    group_->leave();  // every process has come to this
    throw Error(concat(
        "step ", report.step, ": ", report.not_finite, " was not finite ", bad_steps_in_a_row_,
        " steps in a row; stopped, ",
        saved_path_.empty() ? "nothing was saved" : "the last good checkpoint is " + saved_path_.string()));
}

/// Once the last whole step is saved; in every process.
void Trainer::end_with_failure() {
    const std::vector<std::string> failures = group_->all_gather(failure_);
    const auto failed = std::ranges::find_if_not(failures, &std::string::empty);
    const bool is_saved = saved_step_ == step_ && !saved_path_.empty();
    const std::string line = group_->broadcast(concat(
        to_evaluate_ ? "evaluation after step " : "step ", to_evaluate_ ? step_ : step_ + 1, ": ",
        group_->is_alone() ? "" : concat("rank ", failed - failures.begin(), ": "), *failed, "; stopped, ",
        is_saved              ? concat("step ", step_, " is saved: ", saved_path_.string())
        : saved_path_.empty() ? "nothing was saved"
                              : "the last good checkpoint is " + saved_path_.string()));
    group_->leave();  // every process has come to this
    throw Error(line);
}

/// `best`: whether this is the lowest validation loss so far.
Trainer::Part Trainer::evaluate_into(StepReport& report, bool& best) {
    // Whether the best so far came to the disk, rank 0 alone knows.
    best_val_loss_ = optional_of<double>(
        parse_json(group_->broadcast(json_text({{"best_val_loss", json_of(best_val_loss_)}}))),
        "best_val_loss");
    replica_->parallel.gather_values(*arena_ctx_);
    const std::int64_t windows = validation_->loader.windows();
    const auto go_on = [&](std::int64_t done) {
        tell_part(StepPart::Kind::evaluation_windows, done, windows);
        return vote_to_leave(*arena_ctx_) == Part::done;
    };
    std::optional<double> loss;
    try {
        loss = mean_loss(*arena_ctx_, model().transformer, validation_->loader, validation_->batch,
                         *communicator_, go_on);
    } catch (const std::exception& error) {
        failure_ = error.what();
        vote_to_leave(*arena_ctx_);  // the others wait for this one's vote after the batch
    }
    if (!loss) return Part::left;
    report.val_loss = val_loss_ = *loss;
    best = std::isfinite(*loss) && (!best_val_loss_ || *loss < *best_val_loss_);
    if (best) best_val_loss_ = *loss;
    return Part::done;
}

/// Evaluates, records and saves after a step, where each is due.
void Trainer::finish_step(StepReport report, std::int64_t stop_after) {
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    const bool last = step_ == end_;
    bool best = false;
    if (validation_ && (to_evaluate_ || due(config_.eval_every) || last) &&
        evaluate_into(report, best) == Part::left) {
        to_evaluate_ = std::move(report);
        return;
    }
    to_evaluate_.reset();
    record(report);
    if (bad_steps_in_a_row_ >= config_.max_bad_steps) give_up(report);
    if (last || best || step_ == stop_after || due(config_.save_every)) save(best);
    hear_of_saves();
}

RunSummary::Reason Trainer::train_until(std::int64_t stop_after) {
    using Reason = RunSummary::Reason;
    leaving_ = false;
    if (to_evaluate_) finish_step(*to_evaluate_, stop_after);
    for (;;) {
        if (leaving_ && (step_ < end_ || to_evaluate_)) return Reason::requested;
        if (step_ >= end_) return Reason::finished;
        if (stop_after > 0 && step_ >= stop_after) return Reason::stop_after;
        if (group_->is_alone() && wants_to_stop()) return Reason::requested;
        if (std::optional<StepReport> report = train_step()) finish_step(std::move(*report), stop_after);
    }
}

RunSummary Trainer::run(std::int64_t stop_after) {
    check(stop_after >= 0, "stop-after: ", stop_after, "; expected a step, or 0");
    RunSummary summary;
    summary.reason = train_until(stop_after);
    if (summary.reason == RunSummary::Reason::requested) save_last_whole_step();
    if (writer_) writer_->wait();
    hear_of_saves();
    draw_picture();
    if (failed_) end_with_failure();
    replica_->parallel.gather_values(*arena_ctx_);
    summary.dropped_micro_steps = std::exchange(dropped_micro_steps_, 0);
    summary.dropped_of = summary.dropped_micro_steps > 0 ? config_.accumulation_steps(group_->size()) : 0;
    summary.evaluation_left = to_evaluate_.has_value();
    summary.step = step_;
    summary.saved = !group_->is_root() || (saved_step_ == step_ && !saved_path_.empty());
    summary.checkpoint = saved_path_;
    summary.val_loss = val_loss_;
    summary.best_val_loss = best_val_loss_;
    summary.bad_steps = bad_steps_;
    return summary;
}

// ---- What is written ----

void Trainer::record(const StepReport& report) {
    history_.add(report);
    if (metrics_) {
        try {
            metrics_->write(report);
            metrics_failing_ = false;
        } catch (const Error& error) {
            if (!metrics_failing_) on_message_(error.what());  // once, not with every step of a full disk
            metrics_failing_ = true;
        }
    }
    if (on_step_) on_step_(report);
}

void Trainer::save(bool best) {
    if (config_.out.empty()) return;
    const bool sharded = replica_->parallel.is_sharded();
    if (sharded && writer_) writer_->wait();  // what it writes is what snapshot() writes over
    Checkpoint checkpoint = snapshot();
    given_to_save_ = step_;
    if (!writer_) return;
    if (best) best_under_way_[step_] = *best_val_loss_;
    if (sharded) {
        writer_->save_in_place(std::move(checkpoint), best);
    } else {
        writer_->save(checkpoint, best);
    }
    draw_picture();
}

/// Before a run that was stopped returns. Its state is that of the last whole step, however much was dropped.
void Trainer::save_last_whole_step() {
    if (given_to_save_ != step_) save(/*best=*/false);
}

void Trainer::hear_of_saves() {
    if (!writer_) return;
    for (const SaveReport& report : writer_->poll()) {
        if (!report.message.empty()) on_message_(report.message);
        if (report.best) {
            const double loss = best_under_way_.extract(report.step).mapped();
            if (report.is_best) {
                best_saved_val_loss_ = loss;
            } else if (best_val_loss_ == loss) {
                best_val_loss_ = best_saved_val_loss_;  // best.h5 is still that one
            }
        }
        if (!report.saved) continue;
        saved_step_ = report.step;
        saved_path_ = report.path;
        try {
            metrics_->write_checkpoint_event(report.step);
        } catch (const Error& error) {
            on_message_(error.what());
        }
    }
}

void Trainer::draw_picture() {
    if (!directory_) return;
    try {
        const std::filesystem::path run = absolute(directory_->path() / "");
        write_loss_svg(directory_->picture(), history_, run.parent_path().filename().string());
    } catch (const Error& error) {
        on_message_(error.what());
    }
}

}  // namespace gradtile
